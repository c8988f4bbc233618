//! Laws of home, against a model and a disk that loses, tears and reorders.

mod crash;
mod damage;
mod inherit;
mod marks;
mod merge;
mod placed;
mod rig;
mod rounds;
