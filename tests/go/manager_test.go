package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/go-logr/logr"
	"gomodules.xyz/jsonpatch/v2"
)

func init() { log.SetLogger(logr.Discard()) }

// Widget is the custom resource as a program declares it.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WidgetSpec   `json:"spec,omitempty"`
	Status            WidgetStatus `json:"status,omitempty"`
}

type WidgetSpec struct {
	Replicas int32  `json:"replicas,omitempty"`
	Color    string `json:"color,omitempty"`
}

type WidgetStatus struct {
	Replicas int32  `json:"replicas,omitempty"`
	Phase    string `json:"phase,omitempty"`
}

type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Widget `json:"items"`
}

func (w *Widget) DeepCopyObject() runtime.Object {
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (l *WidgetList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Widget))
	}
	return &out
}

func managerScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	version := schema.GroupVersion{Group: group, Version: "v1"}
	scheme.AddKnownTypes(version, &Widget{}, &WidgetList{})
	metav1.AddToGroupVersion(scheme, version)
	return scheme
}

const finalizer = group + "/finalizer"

// widgetReconciler keeps one Job per replica, and a ConfigMap that it applies.
type widgetReconciler struct {
	client.Client
	manager ctrl.Manager
}

func (r *widgetReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	it := &Widget{}
	if err := r.Get(ctx, request.NamespacedName, it); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !it.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(it, finalizer) {
			return reconcile.Result{}, r.Update(ctx, it)
		}
		return reconcile.Result{}, nil
	}
	if controllerutil.AddFinalizer(it, finalizer) {
		return reconcile.Result{}, r.Update(ctx, it)
	}
	jobs := &batchv1.JobList{}
	if err := r.List(ctx, jobs, client.InNamespace(it.Namespace), client.MatchingFields{"owner": it.Name}); err != nil {
		return reconcile.Result{}, err
	}
	for i := int32(len(jobs.Items)); i < it.Spec.Replicas; i++ {
		job := idleJob("")
		job.Namespace, job.GenerateName = it.Namespace, it.Name+"-"
		if err := controllerutil.SetControllerReference(it, job, r.Scheme()); err != nil {
			return reconcile.Result{}, err
		}
		if err := r.Create(ctx, job); err != nil {
			return reconcile.Result{}, err
		}
	}
	applied := coreac.ConfigMap(it.Name, it.Namespace).WithData(map[string]string{"color": it.Spec.Color})
	if err := r.Apply(ctx, applied, client.FieldOwner("widgets"), client.ForceOwnership); err != nil {
		return reconcile.Result{}, err
	}
	before := it.DeepCopyObject().(*Widget)
	it.Status = WidgetStatus{Replicas: int32(len(jobs.Items)), Phase: "Growing"}
	if it.Status.Replicas >= it.Spec.Replicas {
		it.Status.Phase = "Grown"
	}
	if it.Status == before.Status {
		return reconcile.Result{}, nil
	}
	if it.Status.Phase == "Grown" {
		r.manager.GetEventRecorder("widgets").Eventf(it, nil, corev1.EventTypeNormal, "Grown", "Growing", "has %d jobs", it.Status.Replicas)
	}
	return reconcile.Result{}, r.Status().Patch(ctx, it, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func TestManagerReconcilesCustomResourcesIntoJobs(t *testing.T) {
	defineWidgets(t)
	ns, scheme := namespace(t), managerScheme(t)
	ctx, stop := context.WithCancel(t.Context())
	manager, err := ctrl.NewManager(connect(t), ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		LeaderElection: true, LeaderElectionID: "widgets", LeaderElectionNamespace: ns, LeaderElectionReleaseOnCancel: true,
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{ns: {}}},
	})
	must(t, err)
	must(t, manager.GetFieldIndexer().IndexField(ctx, &batchv1.Job{}, "owner", func(object client.Object) []string {
		if owner := metav1.GetControllerOf(object); owner != nil {
			return []string{owner.Name}
		}
		return nil
	}))
	// Touching a labelled ConfigMap, known by its metadata alone, wakes its widget.
	touched := make(chan string, 100)
	wake := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		if _, partial := object.(*metav1.PartialObjectMetadata); partial && object.GetLabels()["wakes"] != "" {
			touched <- object.GetName()
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetLabels()["wakes"]}}}
		}
		return nil
	})
	must(t, ctrl.NewControllerManagedBy(manager).Named(strings.ToLower(t.Name())).For(&Widget{}).Owns(&batchv1.Job{}).
		WatchesMetadata(&corev1.ConfigMap{}, wake, builder.OnlyMetadata).
		Complete(&widgetReconciler{manager.GetClient(), manager}))
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() { stop(); <-ended })

	live, err := client.New(connect(t), client.Options{Scheme: scheme})
	must(t, err)
	it := &Widget{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: ns}, Spec: WidgetSpec{Replicas: 3, Color: "blue"}}
	must(t, live.Create(ctx, it))
	grown := func(replicas int32) func(context.Context) bool {
		return func(ctx context.Context) bool {
			return live.Get(ctx, client.ObjectKeyFromObject(it), it) == nil && it.Status == WidgetStatus{Replicas: replicas, Phase: "Grown"}
		}
	}
	eventually(t, "three jobs", grown(3))
	jobs := &batchv1.JobList{}
	must(t, live.List(ctx, jobs, client.InNamespace(ns)))
	check(t, len(jobs.Items) == 3 && metav1.IsControlledBy(&jobs.Items[0], it), "%d jobs", len(jobs.Items))
	settings := &corev1.ConfigMap{}
	must(t, live.Get(ctx, client.ObjectKeyFromObject(it), settings))
	check(t, settings.Data["color"] == "blue" && settings.ManagedFields[0].Manager == "widgets", "%+v", settings)

	// A deleted job comes back.
	must(t, live.Delete(ctx, &jobs.Items[0], client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &jobs.Items[0].UID}))
	eventually(t, "a new third job", func(ctx context.Context) bool {
		return live.List(ctx, jobs, client.InNamespace(ns)) == nil && len(jobs.Items) == 3
	})
	_, err = controllerutil.CreateOrPatch(ctx, live, it, func() error { it.Spec.Replicas = 5; return nil })
	must(t, err)
	eventually(t, "five jobs", grown(5))
	must(t, live.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "alarm", Namespace: ns, Labels: map[string]string{"wakes": "w"}}}))
	eventually(t, "the alarm to be heard", func(context.Context) bool {
		select {
		case name := <-touched:
			return name == "alarm"
		default:
			return false
		}
	})
	eventually(t, "the events", func(ctx context.Context) bool {
		list := &eventsv1.EventList{}
		return live.List(ctx, list, client.InNamespace(ns), client.MatchingFields{"reason": "Grown", "regarding.kind": "Widget"}) == nil && len(list.Items) >= 2
	})

	must(t, live.Delete(ctx, it))
	eventually(t, "the widget and its jobs to be gone", func(ctx context.Context) bool {
		gone := apierrors.IsNotFound(live.Get(ctx, client.ObjectKeyFromObject(it), it))
		return gone && live.List(ctx, jobs, client.InNamespace(ns)) == nil && len(jobs.Items) == 0
	})
	must(t, live.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(ns), client.MatchingLabels{"wakes": "w"}))
	err = live.Get(ctx, types.NamespacedName{Namespace: ns, Name: "alarm"}, settings)
	check(t, apierrors.IsNotFound(err), "the alarm: %v", err)
}

// A webhook served by controller-runtime, called by the server under test.
func TestWebhooksMadeWithControllerRuntimeAreCalled(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	mutate := &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, request admission.Request) admission.Response {
		return admission.Patched("", jsonPatch("add", "/data", map[string]string{"by": request.UserInfo.Username}))
	})}
	validate := &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, request admission.Request) admission.Response {
		if request.Name == "bad" {
			return admission.Denied("it is bad")
		}
		return admission.Allowed("").WithWarnings("watch out")
	})}
	mux := http.NewServeMux()
	mux.Handle("/mutate", mutate)
	mux.Handle("/validate", validate)
	hooks := httptest.NewUnstartedServer(mux)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	hooks.Listener = listener
	hooks.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	hooks.StartTLS()
	t.Cleanup(hooks.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hooks.Certificate().Raw})
	check(t, x509.NewCertPool().AppendCertsFromPEM(bundle), "the certificate of the test server is unusable")

	admin := typed(t).AdmissionregistrationV1()
	none := admissionregistrationv1.SideEffectClassNone
	rules := []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	here := &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}
	where := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: ptr(hooks.URL + path), CABundle: bundle}
	}
	_, err = admin.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "m." + group, ClientConfig: where("/mutate"), Rules: rules, NamespaceSelector: here, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "v." + group, ClientConfig: where("/validate"), Rules: rules, NamespaceSelector: here, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "named", Expression: "object.metadata.name != 'ignored'"}}}}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = admin.MutatingWebhookConfigurations().Delete(context.Background(), ns, metav1.DeleteOptions{})
		_ = admin.ValidatingWebhookConfigurations().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	live, err := client.New(connect(t), client.Options{})
	must(t, err)
	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}
	}
	// A real server learns of the configuration a moment later.
	eventually(t, "a refusal", func(ctx context.Context) bool {
		err := live.Create(ctx, configMap("bad"), client.DryRunAll)
		var status apierrors.APIStatus
		return errors.As(err, &status) && strings.HasSuffix(status.Status().Message, `admission webhook "v.`+group+`" denied the request: it is bad`)
	})
	made := configMap("good")
	eventually(t, "a mutated object", func(ctx context.Context) bool {
		_ = live.Delete(ctx, configMap("good"))
		made = configMap("good")
		return live.Create(ctx, made) == nil && made.Data["by"] != ""
	})
}

func jsonPatch(operation, path string, value any) jsonpatch.JsonPatchOperation {
	return jsonpatch.NewOperation(operation, path, value)
}
