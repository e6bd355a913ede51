//! Enumerations whose values have one spelling, in names and on the command line.

/// Defines an enumeration with `ALL`, `as_str`, `Display` and `FromStr`, whose error names the option.
macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident, $option:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All values.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The spelling in names and on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::error::SpecError;
            fn from_str(text: &str) -> Result<$name, Self::Err> {
                $name::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| Self::Err::Unknown {
                    option: $option,
                    value: text.to_owned(),
                    expected: $name::ALL.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

pub(super) use spelled;
