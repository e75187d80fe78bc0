use serde_json::{Value, json};
use std::io::BufRead;
use usher_schema::field::{Errors, Path};
use usher_schema::structural::*;
fn show(e: &Errors) -> Value {
    json!(e.0.iter().map(|e| json!([e.path.to_string(), e.body()])).collect::<Vec<_>>())
}
fn main() {
    for line in std::io::stdin().lock().lines() {
        let q: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let mut o = Options::default();
        o.status_subresource = q["status"] == true;
        if let Some(p) = q["path"].as_str() {
            o.path = Path::new(p);
        }
        match Structural::compile_with(&q["schema"], &o) {
            Err(e) => println!("{}", json!({"crd": show(&e)})),
            Ok(s) => {
                let mut outs = vec![];
                for step in q["objects"].as_array().into_iter().flatten() {
                    let mut v = step["new"].clone();
                    let mut unknown = vec![];
                    s.prune(&mut v, &mut unknown);
                    s.default(&mut v);
                    let mut errors = Errors::new();
                    let old = step.get("old").map(|o| {
                        let mut o = o.clone();
                        s.prune(&mut o, &mut vec![]);
                        s.default(&mut o);
                        o
                    });
                    if step["sub"] == "status" {
                        s.validate_status(&v, &old.clone().unwrap(), &mut errors)
                    } else {
                        s.validate(&v, old.as_ref(), &mut errors)
                    };
                    outs.push(json!({"object": v, "unknown": unknown, "errors": show(&errors)}));
                }
                println!("{}", json!({"ok": outs}));
            }
        }
    }
}
