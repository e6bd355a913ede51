//! Special registers.

use super::types::Type;

/// A value that the launch, not an instruction, provides.
///
/// The parser gives every one that a kernel names an ordinary register, which
/// each warp fills before its first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// Thread index in the block, by axis.
    Tid(usize),
    /// Block dimensions.
    Ntid(usize),
    /// Block index in the grid.
    Ctaid(usize),
    /// Grid dimensions.
    Nctaid(usize),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicSharedSize,
    TotalSharedSize,
    /// Address of the `extern .shared` array: not a PTX register, but like one
    /// it is known only when all static variables are placed.
    DynamicSharedBase,
}

impl Special {
    /// The special register written as `name`, and its type.
    pub(crate) fn parse(name: &str) -> Option<(Special, Type)> {
        let name = name.strip_prefix('%')?;
        if let Some((base, axis)) = name.split_once('.') {
            let axis = ["x", "y", "z"].iter().position(|a| *a == axis)?;
            let special = match base {
                "tid" => Special::Tid(axis),
                "ntid" => Special::Ntid(axis),
                "ctaid" => Special::Ctaid(axis),
                "nctaid" => Special::Nctaid(axis),
                _ => return None,
            };
            return Some((special, Type::U32));
        }
        let special = match name {
            "laneid" => Special::LaneId,
            "warpid" => Special::WarpId,
            "nwarpid" => Special::NWarpId,
            "smid" => Special::SmId,
            "nsmid" => Special::NSmId,
            "gridid" => return Some((Special::GridId, Type::U64)),
            "lanemask_eq" => Special::LaneMaskEq,
            "lanemask_lt" => Special::LaneMaskLt,
            "lanemask_le" => Special::LaneMaskLe,
            "lanemask_gt" => Special::LaneMaskGt,
            "lanemask_ge" => Special::LaneMaskGe,
            "dynamic_smem_size" => Special::DynamicSharedSize,
            "total_smem_size" => Special::TotalSharedSize,
            _ => return None,
        };
        Some((special, Type::U32))
    }
}
