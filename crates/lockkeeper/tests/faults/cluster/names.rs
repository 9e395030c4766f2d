//! Names whose keys would be in several slots.

use lockkeeper::Error;

use super::{connected, primaries};
use crate::primitives::{Handle, Primitive, ends_by_itself, set_up};
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_split_are_refused_with_a_name_that_works() {
    let cluster = primaries().await;
    let client = connected(&cluster, options()).await;
    let refused = |error: Error, instead: &str| {
        let text = error.to_string();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(text.contains("slot") && text.contains(instead), "{text}");
    };
    for (name, instead) in
        [("foo{bar", "foo(bar"), ("{}x", "()x"), ("x{}y", "x()y"), ("a}b", "a)b")]
    {
        for primitive in Primitive::ALL {
            let attempt = Handle::new(&client, primitive, name).attempt().await;
            refused(attempt.expect_err("it splits"), instead);
        }
        refused(client.count_down_latch(name).count_down().await.expect_err("it splits"), instead);
    }
    for node in cluster.nodes() {
        let keys = node.server().cli(&["KEYS", "*"]).ok();
        let stored = keys.array().iter().map(|key| key.text()).find(|key| !ends_by_itself(key));
        assert_eq!(stored, None);
    }
    for name in ["foo(bar", "{tag}x", "x{tag}y", "plain"] {
        for primitive in Primitive::ALL {
            let name = format!("{name}{primitive:?}");
            set_up(&client, primitive, &name).await;
            let held = Handle::new(&client, primitive, &name).held().await;
            held.release().await.expect("held");
        }
    }
}
