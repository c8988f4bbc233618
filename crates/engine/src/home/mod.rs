//! Where blocks live after destaging: map, CRC pages, slots, directory, allocator, limbo.
