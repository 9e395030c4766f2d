//! Decorators of a store.

/// Forwards these methods of a `Backend` to the one in a field, as in `forward!(inner: release renew check);`.
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($method:ident)+) => { $($crate::forward!(@ $inner $method);)+ };
    (@ $inner:tt capabilities) => {
        fn capabilities(&self, name: &::lockkeeper::LockName) -> $crate::backend::Capabilities {
            self.$inner.capabilities(name)
        }
    };
    (@ $inner:tt acquire) => {
        fn acquire(&self, request: $crate::backend::Acquire) -> $crate::backend::Answer<$crate::backend::Attempt> {
            self.$inner.acquire(request)
        }
    };
    (@ $inner:tt release) => {
        fn release(&self, request: $crate::backend::Release) -> $crate::backend::Answer<$crate::backend::Released> {
            self.$inner.release(request)
        }
    };
    (@ $inner:tt renew) => {
        fn renew(&self, batch: Vec<$crate::backend::Renew>) -> $crate::backend::BoxFuture<Vec<Result<$crate::backend::Renewed, $crate::backend::Fault>>> {
            self.$inner.renew(batch)
        }
    };
    (@ $inner:tt adjust) => {
        fn adjust(&self, change: $crate::backend::Change) -> $crate::backend::Answer<$crate::backend::Changed> {
            self.$inner.adjust(change)
        }
    };
    (@ $inner:tt inspect) => {
        fn inspect(&self, resource: $crate::backend::Resource) -> $crate::backend::Answer<$crate::backend::LockInfo> {
            self.$inner.inspect(resource)
        }
    };
    (@ $inner:tt subscribe) => {
        fn subscribe(&self, topic: $crate::backend::Topic) -> $crate::backend::Answer<$crate::backend::Subscription> {
            self.$inner.subscribe(topic)
        }
    };
    (@ $inner:tt list) => {
        fn list(&self, request: $crate::backend::List) -> $crate::backend::Answer<$crate::backend::Page> {
            self.$inner.list(request)
        }
    };
    (@ $inner:tt check) => {
        fn check(&self) -> $crate::backend::Answer<Vec<$crate::backend::Finding>> {
            self.$inner.check()
        }
    };
    (@ $inner:tt close) => {
        fn close(&self) -> $crate::backend::BoxFuture<()> {
            self.$inner.close()
        }
    };
}
