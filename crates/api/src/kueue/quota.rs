//! What ClusterQueues and Cohorts say about quota, and what is in use of it.

use crate::crd::{Schema, object, words};
use crate::quantity::Quantity;

object! {
    /// Resources that come together, and the flavors they come in, best first.
    ResourceGroup {
        /// Names of the resources, e.g. cpu. A resource is in one group only.
        covered_resources: Vec<String> =
            Schema::list(Schema::string()).min_items(1).max_items(64).atomic().required(),
        /// Flavors in the order they are tried. A flavor is in one group only.
        flavors: Vec<FlavorQuotas> =
            Schema::list(FlavorQuotas::schema()).min_items(1).max_items(64).keyed(&["name"]).required(),
    } where
        "self.flavors.all(x, size(x.resources) == size(self.coveredResources))" =>
            "flavors must have the same number of resources as the coveredResources",
}

impl ResourceGroup {
    pub fn list() -> Schema {
        Schema::list(ResourceGroup::schema()).max_items(16).atomic()
    }
}

object! {
    /// The quotas of one flavor.
    FlavorQuotas {
        /// Name of a ResourceFlavor.
        name: String = Schema::subdomain().required(),
        /// One for each covered resource, in the same order.
        resources: Vec<ResourceQuota> =
            Schema::list(ResourceQuota::schema()).min_items(1).max_items(64).keyed(&["name"]).required(),
    }
}

object! {
    /// How much there is of a resource in a flavor.
    ResourceQuota {
        /// Name of the resource.
        name: String = Schema::string().required(),
        /// What is there for this queue's (or cohort's) own use.
        nominal_quota: Quantity = Schema::quantity().required(),
        /// How much more may be taken from the cohort. Not set: whatever others leave.
        borrowing_limit: Option<Quantity> = Schema::quantity(),
        /// How much of the nominal quota others may take. Not set: all of it.
        lending_limit: Option<Quantity> = Schema::quantity(),
    }
}

words! {
    /// What happens to new and running workloads of a stopped queue.
    StopPolicy {
        None = "None",
        /// Nothing more is admitted; what runs goes on.
        Hold = "Hold",
        /// Nothing more is admitted, and what runs is evicted.
        HoldAndDrain = "HoldAndDrain",
    }
}
