//! Proof that anyone can repeat: the engine in a simulated world, and its history checked.

pub mod mutants;
pub mod page;
pub mod simulation;
pub mod soak;
