//! Updates through the scale subresource: admission sees the Scale, not the object that is scaled.

use super::Review;
use crate::crd::scale::{Problem, ScalePaths};
use crate::object::Object;
use crate::server::Server;
use crate::status::{ApiError, Result};

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
        let scale = paths.answer(&new).map_err(broken)?;
        let old = paths.answer(old).map_err(broken)?;
        let admitted = self.admit(review, scale.clone(), Some(&old), warnings).await?;
        if admitted != scale {
            paths.set(&mut new, &admitted).map_err(broken)?;
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
        let scale = paths.answer(new).map_err(broken)?;
        let old = paths.answer(old).map_err(broken)?;
        self.validate_admission(review, Some(&scale), Some(&old), warnings).await
    }

    /// Only webhooks look at a Scale.
    fn reviewed_scale<'a>(&self, review: &Review<'a>) -> Option<&'a ScalePaths> {
        if review.subresource != "scale" || self.webhooks().is_empty() {
            return None;
        }
        review.kind.scale_paths()
    }
}

fn broken(problem: Problem) -> ApiError {
    match problem {
        Problem::EmptyReplicas(_) => ApiError::bad_request(problem.to_string()),
        other => ApiError::internal(other.to_string()),
    }
}
