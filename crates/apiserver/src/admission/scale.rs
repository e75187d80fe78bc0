//! Updates through the scale subresource: admission sees the Scale, not the object that is scaled.

use super::Review;
use crate::object::Object;
use crate::server::Server;
use crate::status::Result;

type Paths = (String, String, Option<String>);

impl Server {
    /// [`Server::admit`] for a change of a stored object.
    pub(crate) async fn admit_update(
        &self,
        review: &Review<'_>,
        mut new: Object,
        old: &Object,
        warnings: &mut Vec<String>,
    ) -> Result<Object> {
        let Some(paths) = self.reviewed_scale(review) else {
            return self.admit(review, new, Some(old), warnings).await;
        };
        let (scale, old) = (crate::crd::scale_of(&new, &paths), crate::crd::scale_of(old, &paths));
        let admitted = self.admit(review, scale.clone(), Some(&old), warnings).await?;
        if admitted != scale {
            crate::crd::set_scale(&mut new, &paths, &admitted)?;
        }
        Ok(new)
    }

    /// [`Server::validate_admission`] for a change of a stored object.
    pub(crate) async fn validate_update(
        &self,
        review: &Review<'_>,
        new: &Object,
        old: &Object,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let Some(paths) = self.reviewed_scale(review) else {
            return self.validate_admission(review, Some(new), Some(old), warnings).await;
        };
        let (scale, old) = (crate::crd::scale_of(new, &paths), crate::crd::scale_of(old, &paths));
        self.validate_admission(review, Some(&scale), Some(&old), warnings).await
    }

    /// Only webhooks look at a Scale.
    fn reviewed_scale(&self, review: &Review<'_>) -> Option<Paths> {
        if review.subresource != "scale" || self.webhooks().is_empty() {
            return None;
        }
        review.kind.scale_paths()
    }
}
