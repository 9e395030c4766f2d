//! What is not ours: the owner of another client, and a secret in something that is no URL.

use lockkeeper::{Client, Error};

use crate::store::assert_is;

#[tokio::test(start_paused = true)]
async fn asking_about_the_owner_of_another_client_is_invalid() {
    let url = "memory:strangers";
    let (ours, theirs) = (Client::connect(url).await.unwrap(), Client::connect(url).await.unwrap());
    let (lock, owner) = (ours.lock("it"), theirs.new_owner());
    assert_is!(lock.hold_count(&owner).await, Err(Error::Invalid { .. }));
    assert_is!(lock.is_held_by(&owner).await, Err(Error::Invalid { .. }));
    // Also while that owner holds it.
    let guard = theirs.lock("it").as_owner(&owner).lock().await.unwrap();
    assert_is!(lock.hold_count(&owner).await, Err(Error::Invalid { .. }));
    assert_is!(lock.is_held_by(&owner).await, Err(Error::Invalid { .. }));
    assert_is!(theirs.lock("it").hold_count(&owner).await, Ok(1));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_secret_in_what_is_no_url_is_not_shown() {
    for url in [
        "s3cret@host:6379",
        "user:s3cret@host:6379",
        ":s3cret@host:6379",
        "s3cret@host",
        "//s3cret@host:6379",
        "redis//user:s3cret@host",
    ] {
        let error = Client::connect(url).await.expect_err("it is no URL");
        let said = format!("{error} {error:?}");
        assert!(!said.contains("s3cret"), "{url} is shown: {said}");
        assert_is!(error, Error::Invalid { .. });
    }
}
