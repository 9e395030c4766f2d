#![doc = include_str!("rustdoc_links.md")]
#![doc = include_str!("README.md")]

// Each page is read in two places: on a Git hosting page, and here. Its links are reference links
// (`[text][label]`), and it ends with definitions of their labels as relative paths. Markdown uses the
// first definition of a label, so `rustdoc_links.md`, which comes first here, turns the same labels
// into links to items. `tests/links.rs` checks both.

macro_rules! chapters {
    ($($name:ident)*) => {
        $(#[doc = include_str!("rustdoc_links.md")]
        #[doc = include_str!(concat!(stringify!($name), ".md"))]
        pub mod $name {})*
    };
}

chapters! { choosing guarantees failures failover cluster quorum fencing redisson redis file command_line }
