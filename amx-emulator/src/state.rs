//! The tile registers of one thread and what the instructions do to them.
//!
//! Nothing in here touches memory of the emulated program or allocates; nothing panics, because the
//! configuration bounds every row and column count on entry.

use crate::decode::TileId;
use crate::product::{Element, Lanes, Pairs, add_row};

/// Limits of palette 1.
const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// What the memory operand of the configuration instructions takes.
pub(crate) const CONFIG_BYTES: usize = 64;
const COLSB_AT: usize = 16;
const ROWS_AT: usize = 48;

/// An exception that hardware would raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Palette,
    Reserved,
    TooLarge,
    HalfEmpty,
    Unconfigured,
    UnusedTile,
    ColumnBytes,
    StartRow,
    SameTile,
    Shapes,
}

impl Fault {
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Palette => "#GP: palettes above 1 do not exist",
            Self::Reserved => "#GP: reserved bytes of the tile configuration are not zero",
            Self::TooLarge => "#GP: a tile is configured with over 16 rows or 64 bytes per row",
            Self::HalfEmpty => "#GP: only one of a tile's rows and bytes per row is zero",
            Self::Unconfigured => "#UD: this thread has no tile configuration",
            Self::UnusedTile => "#UD: the configuration gives this tile no rows",
            Self::ColumnBytes => "#UD: bytes per row of a tile are no multiple of 4",
            Self::StartRow => "#UD: start_row lies beyond the rows of the tile",
            Self::SameTile => "#UD: the three tiles of a product are not distinct",
            Self::Shapes => "#UD: the shapes of the three tiles do not fit each other",
        }
    }
}

#[derive(Clone, Copy)]
struct Shape {
    /// At most [`ROWS`], and zero exactly where `row_bytes` is.
    rows: u8,
    /// At most [`ROW_BYTES`].
    row_bytes: u8,
}

type Row = [u8; ROW_BYTES];
type Tile = [Row; ROWS];

/// The AMX state of one thread.
///
/// Bytes outside the configured shape of a tile are zero at all times, as the instructions leave
/// them on hardware.
pub(crate) struct TileUnit {
    configured: bool,
    start_row: u8,
    shapes: [Shape; TILES],
    tiles: [Tile; TILES],
}

impl TileUnit {
    /// The state of a new thread.
    pub(crate) const INITIAL: Self = Self {
        configured: false,
        start_row: 0,
        shapes: [Shape { rows: 0, row_bytes: 0 }; TILES],
        tiles: [[[0; ROW_BYTES]; ROWS]; TILES],
    };

    /// TILERELEASE.
    pub(crate) fn release(&mut self) {
        *self = Self::INITIAL;
    }

    /// LDTILECFG. An invalid configuration leaves the state as it was.
    pub(crate) fn configure(&mut self, image: &[u8; CONFIG_BYTES]) -> Result<(), Fault> {
        match image[0] {
            0 => {
                self.release();
                return Ok(());
            }
            1 => {}
            _ => return Err(Fault::Palette),
        }
        let (column_bytes, rest) = image[COLSB_AT..ROWS_AT].split_at(2 * TILES);
        let (rows, tail) = image[ROWS_AT..].split_at(TILES);
        if [&image[2..COLSB_AT], rest, tail].iter().any(|bytes| bytes.iter().any(|&byte| byte != 0)) {
            return Err(Fault::Reserved);
        }
        let mut shapes = Self::INITIAL.shapes;
        let requested = column_bytes.as_chunks::<2>().0.iter().zip(rows);
        for (shape, (&row_bytes, &rows)) in shapes.iter_mut().zip(requested) {
            let row_bytes = u16::from_le_bytes(row_bytes);
            if usize::from(row_bytes) > ROW_BYTES || usize::from(rows) > ROWS {
                return Err(Fault::TooLarge);
            }
            if (row_bytes == 0) != (rows == 0) {
                return Err(Fault::HalfEmpty);
            }
            *shape = Shape { rows, row_bytes: row_bytes as u8 };
        }
        self.release();
        self.configured = true;
        self.start_row = image[1];
        self.shapes = shapes;
        Ok(())
    }

    /// STTILECFG: all zeros where nothing is configured.
    pub(crate) fn configuration(&self) -> [u8; CONFIG_BYTES] {
        let mut image = [0; CONFIG_BYTES];
        if self.configured {
            image[0] = 1;
            image[1] = self.start_row;
            for (n, shape) in self.shapes.iter().enumerate() {
                image[COLSB_AT + 2 * n] = shape.row_bytes;
                image[ROWS_AT + n] = shape.rows;
            }
        }
        image
    }

    /// TILEZERO.
    pub(crate) fn zero(&mut self, tile: TileId) -> Result<(), Fault> {
        self.shape(tile)?;
        self.start_row = 0;
        self.tiles[tile.index()] = [[0; ROW_BYTES]; ROWS];
        Ok(())
    }

    /// TILELOADD and TILELOADDT1: `read(n, bytes)` fills row `n`. Returns the bytes read.
    pub(crate) fn load(&mut self, tile: TileId, mut read: impl FnMut(u64, &mut [u8])) -> Result<u64, Fault> {
        let (start, rows, row_bytes) = self.span(tile)?;
        // What an instruction has to zero, the bytes outside the shape, is zero already. Rows before
        // the start survive from the interrupted attempt.
        let target = &mut self.tiles[tile.index()];
        for (n, row) in (0..).zip(&mut target[..rows]).skip(start) {
            read(n, &mut row[..row_bytes]);
        }
        self.start_row = 0;
        Ok(((rows - start) * row_bytes) as u64)
    }

    /// TILESTORED: `write(n, bytes)` takes row `n`. Returns the bytes written.
    pub(crate) fn store(&mut self, tile: TileId, mut write: impl FnMut(u64, &[u8])) -> Result<u64, Fault> {
        let (start, rows, row_bytes) = self.span(tile)?;
        let source = &self.tiles[tile.index()];
        for (n, row) in (0..).zip(&source[..rows]).skip(start) {
            write(n, &row[..row_bytes]);
        }
        self.start_row = 0;
        Ok(((rows - start) * row_bytes) as u64)
    }

    /// TDPBF16PS and TDPFP16PS. Returns the scalar multiply-adds done.
    ///
    /// # Safety
    ///
    /// The processor must have FMA.
    pub(crate) unsafe fn multiply(
        &mut self,
        element: Element,
        accumulator: TileId,
        left: TileId,
        right: TileId,
    ) -> Result<u64, Fault> {
        if accumulator == left || accumulator == right || left == right {
            return Err(Fault::SameTile);
        }
        let (c, a, b) = (self.element_shape(accumulator)?, self.element_shape(left)?, self.element_shape(right)?);
        if c.rows != a.rows || c.row_bytes != b.row_bytes || a.row_bytes != b.rows * 4 {
            return Err(Fault::Shapes);
        }
        let (rows, depth, row_bytes) = (usize::from(c.rows), usize::from(b.rows), usize::from(c.row_bytes));
        let mut factor = [Pairs::ZERO; ROWS];
        for (pairs, row) in factor.iter_mut().zip(&self.tiles[right.index()]) {
            *pairs = Pairs::widen(row, element);
        }
        for m in 0..rows {
            let pairs = Pairs::widen(&self.tiles[left.index()][m], element);
            let target = &mut self.tiles[accumulator.index()][m];
            let mut lanes: Lanes = [0; 16];
            for (lane, &bytes) in lanes.iter_mut().zip(target.as_chunks().0) {
                *lane = u32::from_le_bytes(bytes);
            }
            // SAFETY: the caller answers for FMA.
            unsafe { add_row(&mut lanes, &pairs, &factor[..depth]) };
            // Lanes beyond the configured columns stay zero.
            for (bytes, lane) in target[..row_bytes].as_chunks_mut().0.iter_mut().zip(lanes) {
                *bytes = lane.to_le_bytes();
            }
        }
        self.start_row = 0;
        // A pair is two elements.
        Ok((rows * 2 * depth * (row_bytes / 4)) as u64)
    }

    fn shape(&self, tile: TileId) -> Result<Shape, Fault> {
        if !self.configured {
            return Err(Fault::Unconfigured);
        }
        let shape = self.shapes[tile.index()];
        if shape.rows == 0 {
            return Err(Fault::UnusedTile);
        }
        Ok(shape)
    }

    /// The shape of a tile that is to hold whole 4-byte elements.
    fn element_shape(&self, tile: TileId) -> Result<Shape, Fault> {
        let shape = self.shape(tile)?;
        if !shape.row_bytes.is_multiple_of(4) {
            return Err(Fault::ColumnBytes);
        }
        Ok(shape)
    }

    /// First row, number of rows and bytes per row of a tile move.
    fn span(&self, tile: TileId) -> Result<(usize, usize, usize), Fault> {
        let shape = self.element_shape(tile)?;
        if self.start_row >= shape.rows {
            return Err(Fault::StartRow);
        }
        Ok((usize::from(self.start_row), usize::from(shape.rows), usize::from(shape.row_bytes)))
    }
}
