//! Items in flight, found again by key and generation.
//!
//! Operations go out with a key and come back with it; a generation tells apart successive uses of a key.
//!
//! Invariant: an item is taken out exactly once.

/// A slab whose keys carry a generation.
pub(super) struct Table<T> {
    cells: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { cells: Vec::new(), free: Vec::new() }
    }

    /// Inserts an item; returns (generation, key).
    pub(super) fn insert(&mut self, thing: T) -> (u32, u32) {
        let key = self.free.pop().unwrap_or_else(|| {
            self.cells.push((0, None));
            self.cells.len() as u32 - 1
        });
        let cell = &mut self.cells[key as usize];
        assert!(cell.1.is_none(), "key {key} is in use");
        cell.0 = cell.0.wrapping_add(1);
        cell.1 = Some(thing);
        (cell.0, key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.cells.len()
    }

    /// Takes the item out.
    ///
    /// # Panics
    /// When there is none of this key and generation: a completion came twice, or was never expected.
    pub(super) fn take(&mut self, generation: u32, key: u32) -> T {
        let cell = self.cells.get_mut(key as usize).filter(|cell| cell.0 == generation);
        let Some(thing) = cell.and_then(|cell| cell.1.take()) else {
            panic!("nothing in flight under key {key}, generation {generation}");
        };
        self.free.push(key);
        thing
    }

    /// Returns the item under `key`, which is in use.
    pub(super) fn get_mut(&mut self, key: u32) -> &mut T {
        self.cells[key as usize].1.as_mut().expect("the key is in use")
    }

    /// Takes out the item under `key`, whatever its generation.
    pub(super) fn remove(&mut self, key: u32) -> T {
        self.take(self.cells[key as usize].0, key)
    }
}
