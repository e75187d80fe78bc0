//! stub
use crate::object::Object;
use crate::registry::catalog::Catalog;
use crate::server::Server;
use crate::status::Result;
pub fn serve_all(_: &Server, _: &mut Catalog) {}
pub fn scale_of(o: &Object, _p: &(String, String, Option<String>)) -> Object {
    o.clone()
}
pub fn set_scale(_o: &mut Object, _p: &(String, String, Option<String>), _s: &Object) -> Result<()> {
    Ok(())
}
