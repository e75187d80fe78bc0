package main

import (
	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	crd "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type group struct {
	name, version string
	objects       []any
}

// served lists the kinds that the facts cover; what they contain follows by reflection.
var served = []group{
	{"", "v1", []any{
		core.Namespace{}, core.NamespaceList{}, core.Pod{}, core.PodList{}, core.Node{}, core.NodeList{},
		core.ConfigMap{}, core.ConfigMapList{}, core.Secret{}, core.SecretList{}, core.ServiceAccount{}, core.ServiceAccountList{},
		core.Service{}, core.ServiceList{}, core.Event{}, core.EventList{},
		core.PersistentVolumeClaim{}, core.PersistentVolumeClaimList{}, core.LimitRange{}, core.LimitRangeList{},
		core.ResourceQuota{}, core.ResourceQuotaList{}, core.Binding{}, core.PodTemplate{}, core.PodTemplateList{},
		core.ReplicationController{}, core.ReplicationControllerList{},
	}},
	{"admissionregistration.k8s.io", "v1", []any{
		admissionregistration.MutatingWebhookConfiguration{}, admissionregistration.MutatingWebhookConfigurationList{},
		admissionregistration.ValidatingWebhookConfiguration{}, admissionregistration.ValidatingWebhookConfigurationList{},
	}},
	{"apiextensions.k8s.io", "v1", []any{crd.CustomResourceDefinition{}, crd.CustomResourceDefinitionList{}}},
	{"apiregistration.k8s.io", "v1", []any{apiregistration.APIService{}, apiregistration.APIServiceList{}}},
	{"apps", "v1", []any{apps.Deployment{}, apps.DeploymentList{}}},
	{"authentication.k8s.io", "v1", []any{authentication.TokenRequest{}, authentication.TokenReview{}, authentication.SelfSubjectReview{}}},
	{"authorization.k8s.io", "v1", []any{
		authorization.LocalSubjectAccessReview{}, authorization.SelfSubjectAccessReview{},
		authorization.SelfSubjectRulesReview{}, authorization.SubjectAccessReview{},
	}},
	{"autoscaling", "v1", []any{autoscaling.Scale{}}},
	{"batch", "v1", []any{batch.CronJob{}, batch.CronJobList{}, batch.Job{}, batch.JobList{}}},
	{"coordination.k8s.io", "v1", []any{coordination.Lease{}, coordination.LeaseList{}}},
	{"events.k8s.io", "v1", []any{events.Event{}, events.EventList{}}},
	{"meta.k8s.io", "v1", []any{
		meta.CreateOptions{}, meta.DeleteOptions{}, meta.PatchOptions{}, meta.UpdateOptions{}, meta.GetOptions{}, meta.ListOptions{},
		meta.Status{}, meta.WatchEvent{}, meta.PartialObjectMetadata{}, meta.PartialObjectMetadataList{},
		meta.APIGroup{}, meta.APIGroupList{}, meta.APIResourceList{}, meta.APIVersions{},
	}},
	{"node.k8s.io", "v1", []any{node.RuntimeClass{}, node.RuntimeClassList{}}},
	{"policy", "v1", []any{policy.Eviction{}}},
	{"rbac.authorization.k8s.io", "v1", []any{
		rbac.ClusterRole{}, rbac.ClusterRoleList{}, rbac.ClusterRoleBinding{}, rbac.ClusterRoleBindingList{},
		rbac.Role{}, rbac.RoleList{}, rbac.RoleBinding{}, rbac.RoleBindingList{},
	}},
	{"scheduling.k8s.io", "v1", []any{scheduling.PriorityClass{}, scheduling.PriorityClassList{}}},
}
