//! Loads and stores: ld, ldu, st.

use super::fence::{Semantics, scope_of};
use super::types::{Type, low_bits, sign_extend};
use super::{Address, Operand, Reg};
use crate::check::{Scope, SyncTable};
use crate::error::{ParseErrorKind, Space};
use crate::machine::{Access, Context, Fault, Lanes, Mask, Registers, Strength, Warp, lanes};
use crate::memory::resolve_generic;
use crate::report::Class;
use crate::syntax::Statement;

/// A load or a store of up to four elements.
#[derive(Clone, Debug)]
pub(crate) struct LoadStore {
    /// Nothing for a generic address.
    space: Option<Space>,
    ty: Type,
    address: Address,
    semantics: Semantics,
    scope: Scope,
    elements: Elements,
}

#[derive(Clone, Debug)]
enum Elements {
    /// Destinations with the widths of their registers.
    Load(Vec<(Reg, u32)>),
    Store(Vec<Operand>),
}

const SPACES: [(&str, Space); 6] = [
    ("global", Space::Global),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<LoadStore, ParseErrorKind> {
    let load = match s.head() {
        "ld" | "ldu" => true,
        "st" => false,
        _ => return Err(s.unsupported()),
    };
    let semantics = s
        .choose(&[
            ("weak", Semantics::Weak),
            ("volatile", Semantics::Relaxed),
            ("relaxed", Semantics::Relaxed),
            ("acquire", Semantics::Acquire),
            ("release", Semantics::Release),
        ])
        .unwrap_or(Semantics::Weak);
    let ordered = match semantics {
        Semantics::Acquire => load,
        Semantics::Release => !load,
        _ => true,
    };
    if !ordered {
        return Err(s.unsupported());
    }
    let scope = scope_of(s).unwrap_or(Scope::Device);
    let space = s.choose(&SPACES);
    let policy = cache_hints(s);
    let count = s.choose(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    let ty = s.ty()?;
    if ty == Type::Pred || ty.bytes() * count > 16 {
        return Err(s.unsupported());
    }
    let (address, elements) = if load {
        let destinations = s.destinations(ty)?;
        (s.address()?, Elements::Load(destinations))
    } else {
        let address = s.address()?;
        (address, Elements::Store(s.sources(ty)?))
    };
    let found = match &elements {
        Elements::Load(destinations) => destinations.len(),
        Elements::Store(sources) => sources.len(),
    };
    if found != count {
        return Err(ParseErrorKind::WrongOperand("a vector of that length"));
    }
    if policy {
        s.source(Type::B64)?;
    }
    Ok(LoadStore { space, ty, address, semantics, scope, elements })
}

/// Consumes modifiers that only steer caches, which this machine does not have;
/// true if a cache policy operand follows.
pub(super) fn cache_hints(s: &mut Statement<'_, '_>) -> bool {
    let hints = [
        "ca",
        "cg",
        "cs",
        "cv",
        "lu",
        "wb",
        "wt",
        "nc",
        "L1::evict_normal",
        "L1::evict_unchanged",
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::64B",
        "L2::128B",
        "L2::256B",
    ]
    .map(|hint| (hint, false));
    let mut policy = false;
    let all = |s: &mut Statement<'_, '_>| s.choose(&hints).or(s.choose(&[("L2::cache_hint", true)]));
    while let Some(takes_policy) = all(s) {
        policy |= takes_policy;
    }
    policy
}

/// Addresses of the lanes, with the space of each.
pub(super) fn addresses(registers: &Registers, address: Address) -> Lanes {
    let mut addresses = registers.get(address.base);
    for a in &mut addresses {
        *a = a.wrapping_add(address.offset as u64);
    }
    addresses
}

/// Splits lanes by space and turns generic addresses into those of a space.
pub(super) fn spaces(space: Option<Space>, addresses: &mut Lanes, mask: Mask) -> [(Space, Mask); 4] {
    let mut split = [(Space::Global, 0), (Space::Shared, 0), (Space::Local, 0), (Space::Param, 0)];
    if let Some(space) = space {
        for (name, lanes) in &mut split {
            if *name == space {
                *lanes = mask;
            }
        }
        return split;
    }
    for lane in lanes(mask) {
        let (space, offset) = resolve_generic(addresses[lane]);
        addresses[lane] = offset;
        for (name, lanes) in &mut split {
            if *name == space {
                *lanes |= 1 << lane;
            }
        }
    }
    split
}

impl LoadStore {
    pub(crate) fn class(&self) -> Class {
        match (self.space, &self.elements) {
            (Some(Space::Global), Elements::Load(_)) => Class::LoadGlobal,
            (Some(Space::Global), Elements::Store(_)) => Class::StoreGlobal,
            (Some(Space::Shared), Elements::Load(_)) => Class::LoadShared,
            (Some(Space::Shared), Elements::Store(_)) => Class::StoreShared,
            _ => Class::OtherMemory,
        }
    }

    pub(crate) fn execute(&self, warp: &mut Warp, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        let count = match &self.elements {
            Elements::Load(destinations) => destinations.len(),
            Elements::Store(sources) => sources.len(),
        };
        let bytes = self.ty.bytes() * count;
        let mut addresses = addresses(&warp.registers, self.address);
        if self.semantics == Semantics::Release {
            SyncTable::fence(&mut warp.clock, &mut warp.fences, self.scope);
        }
        for (space, mask) in spaces(self.space, &mut addresses, mask) {
            let (recorder, at) = (&mut context.grid.recorder, context.instruction);
            match space {
                Space::Global => recorder.global_access(at, &addresses, mask, bytes),
                Space::Shared => recorder.shared_access(at, &addresses, mask, bytes),
                Space::Local | Space::Param => {}
            }
            for lane in lanes(mask) {
                let access = Access {
                    space,
                    address: addresses[lane],
                    bytes,
                    lane,
                    strength: match self.semantics {
                        Semantics::Weak => Strength::Weak,
                        _ => Strength::Strong,
                    },
                };
                self.element(warp, context, &access)?;
            }
        }
        if self.semantics == Semantics::Acquire {
            SyncTable::fence(&mut warp.clock, &mut warp.fences, self.scope);
        }
        Ok(())
    }

    /// Makes the access of one lane.
    fn element(&self, warp: &mut Warp, context: &mut Context<'_, '_>, access: &Access) -> Result<(), Fault> {
        let bits = self.ty.bits();
        match &self.elements {
            Elements::Load(destinations) => {
                let value = context.load(warp, access)?;
                for (i, &(reg, width)) in destinations.iter().enumerate() {
                    let element = (value >> (bits * i as u32)) as u64 & low_bits(bits);
                    let element = match self.ty.is_signed() {
                        true => sign_extend(element, bits) & low_bits(width),
                        false => element,
                    };
                    warp.registers.set_lane(reg, access.lane, element);
                }
            }
            Elements::Store(sources) => {
                let value = sources.iter().enumerate().fold(0, |value, (i, &source)| {
                    let element = warp.registers.lane(source, access.lane) & low_bits(bits);
                    value | u128::from(element) << (bits * i as u32)
                });
                context.store(warp, access, value)?;
            }
        }
        if self.semantics != Semantics::Weak {
            let block = (access.space == Space::Shared).then_some(context.block.linear);
            let place = (block, access.address);
            match &self.elements {
                Elements::Load(_) => context.grid.sync.observe(place, &mut warp.fences),
                Elements::Store(_) => context.grid.sync.publish(place, &warp.fences),
            }
        }
        Ok(())
    }
}
