//! The manual.
pub mod guarantees {
    //! tbd
}
