//! Checks documents against `schema/*.json`.
//!
//! A small checker, because the crates for JSON Schema take longer to build than all of this crate. It
//! rejects keywords that it does not support. Unlike the standard, a field that no schema describes is an
//! error.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Parses and checks a document.
#[track_caller]
pub(crate) fn checked(schema: &str, text: &str) -> Value {
    let document: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let place = Place { file: format!("{schema}.json"), schema: load(&format!("{schema}.json")) };
    if let Err(error) = check(&place, &document, "the document") {
        panic!("{schema}.json: {error} in {document:#}");
    }
    document
}

fn load(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A schema, and its file, to which its references are relative.
struct Place {
    file: String,
    schema: Value,
}

impl Place {
    fn inner(&self, schema: &Value) -> Self {
        Self { file: self.file.clone(), schema: schema.clone() }
    }

    fn referred(&self, reference: &Value) -> Self {
        let reference = reference.as_str().expect("a reference is a string");
        let (file, pointer) = reference.split_once('#').unwrap_or((reference, ""));
        let file = if file.is_empty() { &self.file } else { file };
        let schema = load(file);
        let schema =
            schema.pointer(pointer).unwrap_or_else(|| panic!("{reference} does not exist"));
        Self { file: file.to_owned(), schema: schema.clone() }
    }

    fn keywords(&self) -> &Map<String, Value> {
        self.schema.as_object().expect("a schema is an object")
    }

    /// All described fields.
    fn fields(&self) -> Vec<String> {
        let own = self.schema.get("properties").and_then(Value::as_object);
        let mut fields: Vec<_> = own.into_iter().flat_map(|own| own.keys().cloned()).collect();
        if let Some(reference) = self.schema.get("$ref") {
            fields.extend(self.referred(reference).fields());
        }
        fields
    }
}

fn check(place: &Place, value: &Value, at: &str) -> Result<(), String> {
    if let Some(object) = value.as_object() {
        let known = place.fields();
        if let Some(field) = object.keys().find(|field| !known.contains(field)) {
            return Err(format!("{at}: \"{field}\" is not described"));
        }
    }
    part(place, value, at)
}

/// Ignores fields that are not described: a reference describes only some of them.
fn part(place: &Place, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, wanted) in place.keywords() {
        match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
            "$ref" => part(&place.referred(wanted), value, at)?,
            "type" => {
                let is = |wanted: &Value| is_type(value, wanted.as_str().unwrap_or_default());
                let one_of = wanted.as_array().map_or_else(|| is(wanted), |all| all.iter().any(is));
                one_of.then_some(()).ok_or(format!("{at}: {value} is not {wanted}"))?;
            }
            "enum" => {
                let all = wanted.as_array().expect("an enum is an array");
                all.contains(value)
                    .then_some(())
                    .ok_or(format!("{at}: {value} not in {wanted}"))?;
            }
            "minimum" => {
                let (least, number) = (wanted.as_i64(), value.as_i64());
                let fits = number.is_none_or(|number| Some(number) >= least);
                fits.then_some(()).ok_or(format!("{at}: {value} is less than {wanted}"))?;
            }
            "required" => {
                for field in wanted.as_array().expect("required is an array") {
                    let field = field.as_str().expect("a field's name is a string");
                    value.get(field).ok_or(format!("{at}: \"{field}\" is missing"))?;
                }
            }
            "properties" => {
                for (field, schema) in wanted.as_object().expect("properties are an object") {
                    if let Some(inner) = value.get(field) {
                        check(&place.inner(schema), inner, &format!("{at}.{field}"))?;
                    }
                }
            }
            "items" => {
                for (n, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(&place.inner(wanted), inner, &format!("{at}[{n}]"))?;
                }
            }
            other => panic!("the checker does not support the keyword {other}"),
        }
    }
    Ok(())
}

fn is_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the checker does not support the type {other}"),
    }
}

#[test]
fn the_checker_finds_errors() {
    let place = Place { file: "unlock.json".to_owned(), schema: load("unlock.json") };
    let good = json!({"name": "a", "kind": "lock", "unlocked": true, "reason": null,
        "from": [{"id": "x", "holds": 1, "shared": false, "host": null, "pid": 7,
                  "program": null, "since": null, "seen_ms": 3, "left": null}]});
    check(&place, &good, "it").unwrap();
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut bad = good.clone();
        change(&mut bad);
        check(&place, &bad, "it").unwrap_err()
    };
    assert_eq!(wrong(&|v| v["extra"] = json!(1)), "it: \"extra\" is not described");
    assert_eq!(
        wrong(&|v| v["kind"] = json!("cat")).split(" not in").next(),
        Some("it.kind: \"cat\"")
    );
    assert_eq!(wrong(&|v| v["unlocked"] = json!("yes")), "it.unlocked: \"yes\" is not \"boolean\"");
    assert_eq!(wrong(&|v| v["from"][0]["pid"] = json!(-1)), "it.from[0].pid: -1 is less than 0");
    assert_eq!(wrong(&|v| v["from"][0] = json!({})), "it.from[0]: \"id\" is missing");
}
