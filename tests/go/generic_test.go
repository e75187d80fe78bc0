package client

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

const group = "tests.example.com"

var widgets = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}

// defineWidgets makes the definition all tests share, once, and waits until it is served.
func defineWidgets(t *testing.T) {
	t.Helper()
	client, err := apiextensions.NewForConfig(connect(t))
	must(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	number := apiextensionsv1.JSONSchemaProps{Type: "integer", Minimum: ptr(float64(0))}
	_, err = definitions.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}},
				SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"replicas": number, "max": number,
						"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"red"`)}},
					}, XValidations: apiextensionsv1.ValidationRules{{Rule: "!has(self.max) || self.replicas <= self.max", Message: "too many"}}},
					"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"replicas": number, "phase": {Type: "string"}}},
				}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	eventually(t, "the definition to be established", func(ctx context.Context) bool {
		it, err := definitions.Get(ctx, "widgets."+group, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range it.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true
			}
		}
		return false
	})
	// A real server may serve it a moment later than it says.
	client2, err := dynamic.NewForConfig(connect(t))
	must(t, err)
	eventually(t, "the definition to be served", func(ctx context.Context) bool {
		_, err := client2.Resource(widgets).List(ctx, metav1.ListOptions{})
		return err == nil
	})
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec}}
}

func TestDynamicClientWorksOnCustomResources(t *testing.T) {
	defineWidgets(t)
	ctx, ns := t.Context(), namespace(t)
	client, err := dynamic.NewForConfig(connect(t))
	must(t, err)
	all := client.Resource(widgets).Namespace(ns)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, ns, nil)
	seen := watching(factory.ForResource(widgets).Informer())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	made, err := all.Create(ctx, widget("w", map[string]any{"replicas": int64(2), "max": int64(3), "unknown": "pruned"}), metav1.CreateOptions{})
	must(t, err)
	color, _, _ := unstructured.NestedString(made.Object, "spec", "color")
	_, unknown, _ := unstructured.NestedString(made.Object, "spec", "unknown")
	check(t, color == "red" && !unknown && made.GetGeneration() == 1, "%v", made.Object)
	eventually(t, "the informer", func(context.Context) bool { return seen.saw(seen.added, "w") })
	_, err = all.Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{})
	check(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), "too many"), "a broken rule: %v", err)
	patched, err := all.Patch(ctx, "w", types.JSONPatchType, []byte(`[{"op":"test","path":"/spec/replicas","value":2},{"op":"replace","path":"/spec/replicas","value":3}]`), metav1.PatchOptions{})
	must(t, err)
	check(t, patched.GetGeneration() == 2, "generation %d", patched.GetGeneration())
	must(t, unstructured.SetNestedField(patched.Object, "Done", "status", "phase"))
	must(t, unstructured.SetNestedField(patched.Object, int64(0), "spec", "replicas"))
	done, err := all.UpdateStatus(ctx, patched, metav1.UpdateOptions{})
	must(t, err)
	replicas, _, _ := unstructured.NestedInt64(done.Object, "spec", "replicas")
	phase, _, _ := unstructured.NestedString(done.Object, "status", "phase")
	check(t, replicas == 3 && phase == "Done" && done.GetGeneration() == 2, "%v", done.Object)
	_, err = all.Create(ctx, widget("blue", map[string]any{"color": "blue"}), metav1.CreateOptions{})
	must(t, err)
	blue, err := all.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=blue"})
	must(t, err)
	check(t, len(blue.Items) == 1 && blue.Items[0].GetName() == "blue", "%v", blue.Items)
	_, err = all.Patch(ctx, "w", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	check(t, apierrors.IsUnsupportedMediaType(err), "strategic merge of a custom resource: %v", err)
	applied, err := all.Apply(ctx, "w", widget("w", map[string]any{"color": "green"}), metav1.ApplyOptions{FieldManager: "tester", Force: true})
	must(t, err)
	color, _, _ = unstructured.NestedString(applied.Object, "spec", "color")
	check(t, color == "green", "%v", applied.Object)
	must(t, all.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	eventually(t, "the end", func(context.Context) bool { return seen.saw(seen.deleted, "w") && seen.saw(seen.deleted, "blue") })
}

func TestScaleClientScalesCustomResources(t *testing.T) {
	defineWidgets(t)
	ctx, ns, config := t.Context(), namespace(t), connect(t)
	client, err := dynamic.NewForConfig(config)
	must(t, err)
	_, err = client.Resource(widgets).Namespace(ns).Create(ctx, widget("w", map[string]any{"replicas": int64(2)}), metav1.CreateOptions{})
	must(t, err)
	found, err := discovery.NewDiscoveryClientForConfig(config)
	must(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	scales, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(found))
	must(t, err)
	it, err := scales.Scales(ns).Get(ctx, widgets.GroupResource(), "w", metav1.GetOptions{})
	must(t, err)
	check(t, it.Spec.Replicas == 2, "%+v", it)
	it.Spec.Replicas = 4
	_, err = scales.Scales(ns).Update(ctx, widgets.GroupResource(), it, metav1.UpdateOptions{})
	must(t, err)
	it, err = scales.Scales(ns).Patch(ctx, widgets, "w", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})
	must(t, err)
	check(t, it.Spec.Replicas == 4, "%+v", it)
}

func TestDiscoveryNamesEveryKind(t *testing.T) {
	defineWidgets(t)
	for _, legacy := range []bool{false, true} {
		client, err := discovery.NewDiscoveryClientForConfig(connect(t))
		must(t, err)
		client.UseLegacyDiscovery = legacy
		_, lists, err := client.ServerGroupsAndResources()
		must(t, err)
		found := map[string]metav1.APIResource{}
		for _, list := range lists {
			for _, resource := range list.APIResources {
				found[list.GroupVersion+"/"+resource.Name] = resource
			}
		}
		for _, name := range []string{"v1/pods", "v1/pods/status", "v1/pods/binding", "v1/pods/eviction", "v1/pods/log", "v1/nodes", "v1/events", "v1/serviceaccounts/token",
			"batch/v1/jobs", "batch/v1/jobs/status", "batch/v1/cronjobs", "events.k8s.io/v1/events", "coordination.k8s.io/v1/leases", "rbac.authorization.k8s.io/v1/roles",
			"apiextensions.k8s.io/v1/customresourcedefinitions", "authorization.k8s.io/v1/subjectaccessreviews", group + "/v1/widgets", group + "/v1/widgets/scale"} {
			_, there := found[name]
			check(t, there, "no %s (legacy: %v)", name, legacy)
		}
		jobs := found["batch/v1/jobs"]
		check(t, jobs.Kind == "Job" && jobs.Namespaced && jobs.SingularName == "job" && strings.Join(jobs.Categories, ",") == "all" &&
			jobs.Verbs.String() == "[create delete deletecollection get list patch update watch]", "%+v", jobs)
		groups, err := restmapper.GetAPIGroupResources(client)
		must(t, err)
		mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), client, nil)
		for short, kind := range map[string]string{"cj": "CronJob", "po": "Pod", "wd": "Widget", "leases": "Lease", "pc": "PriorityClass"} {
			mapped, err := mapper.KindFor(schema.GroupVersionResource{Resource: short})
			must(t, err)
			check(t, mapped.Kind == kind, "%s is %v", short, mapped)
		}
		mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "batch", Kind: "Job"})
		must(t, err)
		check(t, mapping.Scope.Name() == meta.RESTScopeNameNamespace && mapping.Resource.Version == "v1", "%+v", mapping)
	}
	client, err := discovery.NewDiscoveryClientForConfig(connect(t))
	must(t, err)
	version, err := client.ServerVersion()
	must(t, err)
	check(t, version.Major == "1" && version.Minor == "37", "%+v", version)
	paths, err := client.OpenAPIV3().Paths()
	must(t, err)
	document, err := paths["apis/batch/v1"].Schema("application/json")
	must(t, err)
	check(t, json.Valid(document) && strings.Contains(string(document), "io.k8s.api.batch.v1.JobSpec"), "no JobSpec in OpenAPI")
	_, err = client.OpenAPISchema() // protobuf
	must(t, err)
}

func TestNamespacesAreEmptiedBeforeTheyGo(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	_, err := client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{})
	must(t, err)
	must(t, client.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
	eventually(t, "the namespace to terminate", func(ctx context.Context) bool {
		it, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return err == nil && it.Status.Phase == corev1.NamespaceTerminating && len(it.Status.Conditions) > 0
	})
	_, err = client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	check(t, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), "creating in it: %v", err)
	_, err = client.CoreV1().ConfigMaps(ns).Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(t, "the namespace to be gone", func(ctx context.Context) bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
