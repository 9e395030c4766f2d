//! How the types for threads are made from the async ones: each has a client, which carries the runtime.

use super::Client;
use crate::{Holder, LockInfo, Remaining};

/// The result of an async method as a thread gets it: a guard together with its client, anything else as it is.
pub(super) trait Outcome {
    type Blocking;
    fn on(self, client: &Client) -> Self::Blocking;
}

impl<T: Outcome> Outcome for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn on(self, client: &Client) -> Self::Blocking {
        self.map(|outcome| outcome.on(client))
    }
}

macro_rules! as_it_is {
    ($($Type:ty),+) => {
        $(impl Outcome for $Type {
            type Blocking = Self;

            fn on(self, _: &Client) -> Self {
                self
            }
        })+
    };
}

as_it_is!((), bool, u64, i64, usize, Holder, Vec<Holder>, LockInfo, Remaining);

/// A handle: the async one and the client.
macro_rules! handle {
    ($(#[$doc:meta])* $Type:ident) => {
        $(#[$doc])*
        #[doc = concat!("See [`crate::", stringify!($Type), "`].")]
        #[derive(Clone, Debug)]
        pub struct $Type {
            pub(super) inner: crate::$Type,
            pub(super) client: Client,
        }

        impl $Type {
            pub(super) fn new(client: &Client, inner: crate::$Type) -> Self {
                Self { inner, client: client.clone() }
            }
        }
    };
}

/// The name of a handle.
macro_rules! named {
    ($($Type:ident)+) => {
        $(impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }
        })+
    };
}

/// Methods that wait for the async methods of the same names, of the handle `$inner`.
macro_rules! waiting {
    ($Type:ident, $this:ident => $inner:expr; {
        $($(#[$doc:meta])* fn $method:ident($($arg:ident: $Arg:ty),*) -> $Out:ty;)+
    }) => {
        impl $Type {
            $($(#[$doc])*
            #[doc = ""]
            #[doc = concat!("See [`crate::", stringify!($Type), "::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// As there.
            pub fn $method(&self, $($arg: $Arg),*) -> Result<$Out> {
                let $this = self;
                let outcome = self.client.wait($inner.$method($($arg),*))?;
                Ok($crate::blocking::forward::Outcome::on(outcome, &self.client))
            })+
        }
    };
}

/// Methods that return another handle.
macro_rules! variants {
    ($Type:ident {
        $($(#[$doc:meta])* fn $method:ident($($arg:ident: $Arg:ty),*) -> $Out:ident;)+
    }) => {
        impl $Type {
            $($(#[$doc])*
            #[doc = ""]
            #[doc = concat!("See [`crate::", stringify!($Type), "::", stringify!($method), "`].")]
            #[must_use = "it is a new handle"]
            pub fn $method(&self, $($arg: $Arg),*) -> $Out {
                $Out::new(&self.client, self.inner.$method($($arg),*))
            })+
        }
    };
}

pub(super) use {handle, named, variants, waiting};
