//! What types between two passes show of themselves: what they are of, not the values that they hold.

/// `shown!(Name of self.job)` for types with a job.
macro_rules! shown {
    ($($name:ident $(<$life:lifetime>)? of $job:ident $(. $inner:ident)*),* $(,)?) => {$(
        impl<D: $crate::Device> std::fmt::Debug for $name<$($life,)? D> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), self.$job$(.$inner)*.summary())
            }
        }
    )*};
}

pub(crate) use shown;
