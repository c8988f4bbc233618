//! The bytes of home: CRC pages, map, directory, decision slots.
