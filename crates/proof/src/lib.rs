//! Proof that anyone can repeat: the engine in a simulated world, and its history checked.

pub mod simulation;
