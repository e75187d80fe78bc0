package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
)

func protobuf(t *testing.T) (*kubernetes.Clientset, *recorder) {
	t.Helper()
	config := connect(t)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	recorder := record(config)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client, recorder
}

// What is sent as protobuf is what is read back, for every kind, down to the last field.
func TestProtobufBodiesLoseNothing(t *testing.T) {
	client, recorder := protobuf(t)
	ctx, ns := t.Context(), namespace(t)
	yes, no, text := true, false, "text"
	one, seconds := int32(1), int64(30)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}, Annotations: map[string]string{"note": "ü€"}},
		Spec:       idleSpec(),
	}
	template.Spec.Volumes = []corev1.Volume{
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)}}},
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}, Optional: &yes}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
		}}}},
	}
	template.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "example.com/gpu": resource.MustParse("2")},
		Limits:   corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "memory": resource.MustParse("1.5Gi")},
	}
	template.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}}}
	template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
	template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}, {Name: "E", Value: ""}}
	template.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
	template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
		{Weight: 7, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "b"}}}}}}}}
	template.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes, FSGroup: &seconds}
	template.Spec.AutomountServiceAccountToken = &no

	sentJob := idleJob("job")
	sentJob.Spec.Template = template
	sentJob.Spec.BackoffLimit = &one
	sentJob.Spec.CompletionMode = ptr(batchv1.IndexedCompletion)
	sentJob.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:      batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: ptr("main"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3, 4}},
	}}}
	job, err := client.BatchV1().Jobs(ns).Create(ctx, sentJob.DeepCopy(), metav1.CreateOptions{})
	must(t, err)
	sentCron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: batchv1.CronJobSpec{
		Schedule: "*/5 1-3 * * 1,2", TimeZone: ptr("Europe/Berlin"), Suspend: &yes, StartingDeadlineSeconds: &seconds,
		ConcurrencyPolicy: batchv1.ReplaceConcurrent, JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}}
	cron, err := client.BatchV1().CronJobs(ns).Create(ctx, sentCron.DeepCopy(), metav1.CreateOptions{})
	must(t, err)
	sentPod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Finalizers: []string{"example.com/x"}}, Spec: template.Spec}
	sentPod.Spec.Containers = []corev1.Container{*template.Spec.Containers[0].DeepCopy()}
	pod, err := client.CoreV1().Pods(ns).Create(ctx, sentPod.DeepCopy(), metav1.CreateOptions{})
	must(t, err)
	sentMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "map"}, Data: map[string]string{"a": "1", "b": ""}, BinaryData: map[string][]byte{"c": {0, 255, 7}}, Immutable: &yes}
	configMap, err := client.CoreV1().ConfigMaps(ns).Create(ctx, sentMap.DeepCopy(), metav1.CreateOptions{})
	must(t, err)
	secret, err := client.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, Type: corev1.SecretTypeOpaque, StringData: map[string]string{"k": "v"}, Data: map[string][]byte{"d": {1, 2, 0}}}, metav1.CreateOptions{})
	must(t, err)
	service, err := client.CoreV1().Services(ns).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "service"}, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "x"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}, metav1.CreateOptions{})
	must(t, err)
	claim, err := client.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &text,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("5Gi")}}}}, metav1.CreateOptions{})
	must(t, err)
	sentLease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &text, LeaseDurationSeconds: &one, RenewTime: ptr(metav1.NowMicro())}}
	lease, err := client.CoordinationV1().Leases(ns).Create(ctx, sentLease.DeepCopy(), metav1.CreateOptions{})
	must(t, err)
	class, err := client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "go-"}, Value: -5, Description: text, PreemptionPolicy: ptr(corev1.PreemptNever)}, metav1.CreateOptions{})
	must(t, err)
	runtimeClass, err := client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "go-"}, Handler: "kata", Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("10m")}}}, metav1.CreateOptions{})
	must(t, err)
	role, err := client.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "role"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}, metav1.CreateOptions{})
	must(t, err)
	quota, err := client.CoreV1().ResourceQuotas(ns).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse("10")}}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = client.SchedulingV1().PriorityClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{})
		_ = client.NodeV1().RuntimeClasses().Delete(context.Background(), runtimeClass.Name, metav1.DeleteOptions{})
		_, _ = client.CoreV1().Pods(ns).Patch(context.Background(), "pod", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})

	check(t, recorder.any(func(r *http.Request) bool {
		return r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/jobs") && r.Header.Get("Content-Type") == "application/vnd.kubernetes.protobuf"
	}), "the Job was not sent as protobuf")
	same := func(what string, got, sent any) {
		t.Helper()
		for _, lost := range missing(what, plain(t, got), plain(t, sent)) {
			t.Errorf("came back changed: %s", lost)
		}
	}
	same("job", job.Spec, sentJob.Spec)
	check(t, *job.Spec.Template.Spec.TerminationGracePeriodSeconds == 30 && job.Spec.Selector != nil, "job was not defaulted: %+v", job.Spec)
	same("cron job", cron.Spec, sentCron.Spec)
	same("pod", pod.Spec, sentPod.Spec)
	check(t, pod.Finalizers[0] == "example.com/x" && pod.Status.QOSClass == corev1.PodQOSBurstable, "%+v", pod)
	same("config map", configMap.Data, sentMap.Data)
	same("config map", configMap.BinaryData, sentMap.BinaryData)
	check(t, string(secret.Data["k"]) == "v" && len(secret.Data["d"]) == 3 && secret.StringData == nil, "%+v", secret)
	check(t, service.Spec.ClusterIP == "None" && service.Spec.Ports[0].TargetPort.IntVal == 8080, "%+v", service.Spec)
	check(t, claim.Spec.Resources.Requests.Storage().String() == "5Gi" && claim.Status.Phase == corev1.ClaimPending, "%+v", claim)
	check(t, lease.Spec.RenewTime.Time.Equal(sentLease.Spec.RenewTime.Truncate(time.Microsecond)), "%v is not %v", lease.Spec.RenewTime, sentLease.Spec.RenewTime)
	check(t, class.Value == -5 && *class.PreemptionPolicy == corev1.PreemptNever, "%+v", class)
	check(t, runtimeClass.Overhead.PodFixed.Cpu().String() == "10m", "%+v", runtimeClass)
	check(t, role.Rules[0].Resources[0] == "pods", "%+v", role)
	check(t, quota.Spec.Hard["count/jobs.batch"] == resource.MustParse("10"), "%+v", quota)

	// A second round: what was read can be written back as it is.
	again, err := client.BatchV1().Jobs(ns).Update(ctx, job, metav1.UpdateOptions{})
	must(t, err)
	check(t, again.ResourceVersion == job.ResourceVersion, "an update that changes nothing made revision %s of %s", again.ResourceVersion, job.ResourceVersion)
}

func TestGeneratedClientsWorkAsTheyAreBuilt(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	job, err := client.BatchV1().Jobs(ns).Create(ctx, idleJob("a"), metav1.CreateOptions{})
	must(t, err)
	got, err := client.BatchV1().Jobs(ns).Get(ctx, "a", metav1.GetOptions{})
	must(t, err)
	check(t, equality.Semantic.DeepEqual(job.Spec, got.Spec), "%+v is not %+v", got, job)
	got.Spec.Parallelism = ptr(int32(1))
	updated, err := client.BatchV1().Jobs(ns).Update(ctx, got, metav1.UpdateOptions{})
	must(t, err)
	check(t, updated.Generation == job.Generation+1, "generation %d after %d", updated.Generation, job.Generation)
	_, err = client.BatchV1().Jobs(ns).Update(ctx, got, metav1.UpdateOptions{})
	check(t, apierrors.IsConflict(err), "a stale update: %v", err)
	_, err = client.BatchV1().Jobs(ns).Create(ctx, idleJob("a"), metav1.CreateOptions{})
	check(t, apierrors.IsAlreadyExists(err), "a second one of the name: %v", err)
	bad := idleJob("Bad_Name")
	bad.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err = client.BatchV1().Jobs(ns).Create(ctx, bad, metav1.CreateOptions{})
	check(t, apierrors.IsInvalid(err), "an invalid job: %v", err)
	check(t, len(apierrors.StatusError{ErrStatus: err.(apierrors.APIStatus).Status()}.ErrStatus.Details.Causes) == 2, "causes: %v", err)
	dry, err := client.BatchV1().Jobs(ns).Create(ctx, idleJob("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	must(t, err)
	check(t, dry.UID != "", "a dry run answers as the real thing")
	_, err = client.BatchV1().Jobs(ns).Get(ctx, "dry", metav1.GetOptions{})
	check(t, apierrors.IsNotFound(err), "a dry run made an object: %v", err)
	must(t, client.BatchV1().Jobs(ns).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationBackground)}, metav1.ListOptions{}))
	list, err := client.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
	must(t, err)
	check(t, len(list.Items) == 0, "%d jobs are left", len(list.Items))
}

func TestConflictingWritersRetryUntilAllAreCounted(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	maps := client.CoreV1().ConfigMaps(ns)
	_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"}}, metav1.CreateOptions{})
	must(t, err)
	const writers, rounds = 8, 5
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for round := range rounds {
				err := retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error {
					return retry.RetryOnConflict(retry.DefaultRetry, func() error {
						now, err := maps.Get(ctx, "counter", metav1.GetOptions{})
						if err != nil {
							return err
						}
						if now.Data == nil {
							now.Data = map[string]string{}
						}
						now.Data[fmt.Sprintf("%d-%d", writer, round)] = "here"
						_, err = maps.Update(ctx, now, metav1.UpdateOptions{})
						return err
					})
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	end, err := maps.Get(ctx, "counter", metav1.GetOptions{})
	must(t, err)
	check(t, len(end.Data) == writers*rounds, "%d of %d writes are there", len(end.Data), writers*rounds)
}

func TestDeletionMindsItsPreconditions(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	maps := client.CoreV1().ConfigMaps(ns)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "it"}}, metav1.CreateOptions{})
	must(t, err)
	err = maps.Delete(ctx, "it", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")})
	check(t, apierrors.IsConflict(err), "another uid: %v", err)
	err = maps.Delete(ctx, "it", *metav1.NewRVDeletionPrecondition("1"))
	check(t, apierrors.IsConflict(err), "another revision: %v", err)
	must(t, maps.Delete(ctx, "it", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID, ResourceVersion: &made.ResourceVersion}}))
	err = maps.Delete(ctx, "it", metav1.DeleteOptions{})
	check(t, apierrors.IsNotFound(err), "deleted twice: %v", err)
}

func TestForegroundAndOrphanDeletion(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	maps := client.CoreV1().ConfigMaps(ns)
	family := func(name string) {
		parent, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: parent.Name, UID: parent.UID, BlockOwnerDeletion: ptr(true)}
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + "-child", OwnerReferences: []metav1.OwnerReference{owner}}}, metav1.CreateOptions{})
		must(t, err)
	}
	gone := func(name string) bool {
		_, err := maps.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	family("foreground")
	must(t, maps.Delete(ctx, "foreground", metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationForeground)}))
	eventually(t, "both to be gone", func(context.Context) bool { return gone("foreground") && gone("foreground-child") })
	family("orphan")
	must(t, maps.Delete(ctx, "orphan", metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationOrphan)}))
	eventually(t, "the parent to be gone", func(context.Context) bool { return gone("orphan") })
	child, err := maps.Get(ctx, "orphan-child", metav1.GetOptions{})
	must(t, err)
	check(t, len(child.OwnerReferences) == 0, "the orphan still names its owner: %v", child.OwnerReferences)
}

func TestPagesAreOfOneRevision(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	maps := client.CoreV1().ConfigMaps(ns)
	for i := range 25 {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%02d", i), Labels: map[string]string{"in": "pages"}}}, metav1.CreateOptions{})
		must(t, err)
	}
	first, err := maps.List(ctx, metav1.ListOptions{Limit: 10, LabelSelector: "in=pages"})
	must(t, err)
	check(t, len(first.Items) == 10 && first.Continue != "", "%d items, continue %q", len(first.Items), first.Continue)
	must(t, maps.Delete(ctx, "m24", metav1.DeleteOptions{}))
	second, err := maps.List(ctx, metav1.ListOptions{Limit: 100, LabelSelector: "in=pages", Continue: first.Continue})
	must(t, err)
	check(t, len(second.Items) == 15 && second.ResourceVersion == first.ResourceVersion, "%d items at %s after %s", len(second.Items), second.ResourceVersion, first.ResourceVersion)
	seen := 0
	err = pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = "in=pages"
		return maps.List(ctx, options)
	})).EachListItem(ctx, metav1.ListOptions{Limit: 7}, func(runtime.Object) error { seen++; return nil })
	must(t, err)
	check(t, seen == 24, "the pager saw %d", seen)
	_, err = maps.List(ctx, metav1.ListOptions{Limit: 7, Continue: "nonsense"})
	check(t, apierrors.IsBadRequest(err), "a continue token of nobody: %v", err)
	// Without the client's own retries, which are many.
	err = client.CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").Param("resourceVersion", "999999999").MaxRetries(0).Do(ctx).Error()
	check(t, apierrors.IsTimeout(err) && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), "a revision of the future: %v", err)
}

func TestPodsAreBoundEvictedAndReported(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	pods := client.CoreV1().Pods(ns)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"on": "x"}}, Spec: idleSpec()}
	pod.Spec.SchedulingGates = nil
	pod.Spec.SchedulerName = "example.com/nobody"
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	// The node does not exist, so nobody acts on it.
	must(t, pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"}}, metav1.CreateOptions{}))
	err = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "elsewhere"}}, metav1.CreateOptions{})
	check(t, apierrors.IsConflict(err), "bound twice: %v", err)
	bound, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=nowhere"})
	must(t, err)
	check(t, len(bound.Items) == 1 && bound.Items[0].Spec.NodeName == "nowhere", "%+v", bound.Items)
	it := bound.Items[0].DeepCopy()
	it.Status.Phase = corev1.PodRunning
	it.Status.Conditions = append(it.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	it.Spec.Hostname = "ignored"
	running, err := pods.UpdateStatus(ctx, it, metav1.UpdateOptions{})
	must(t, err)
	check(t, running.Status.Phase == corev1.PodRunning && running.Spec.Hostname == "", "%+v", running)
	must(t, client.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}}))
	_, err = pods.Get(ctx, "p", metav1.GetOptions{})
	check(t, apierrors.IsNotFound(err), "evicted: %v", err)
}

type warnings struct {
	lock sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.said = append(w.said, text)
}

func TestUnknownFieldsAreWarnedOfOrRefused(t *testing.T) {
	config, ctx, ns := connect(t), t.Context(), namespace(t)
	heard := &warnings{}
	config.WarningHandler = heard
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd"},"daat":{"a":"b"}}`)
	post := func(validation string) rest.Result {
		return client.CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").Param("fieldValidation", validation).
			SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
	}
	err = post("Strict").Error()
	check(t, apierrors.IsBadRequest(err) && strings.Contains(err.Error(), `unknown field "daat"`), "strict: %v", err)
	must(t, post("Warn").Error())
	check(t, len(heard.said) == 1 && heard.said[0] == `unknown field "daat"`, "warned: %q", heard.said)
}

// plain is a value as JSON, with every list and map readable.
func plain(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	must(t, err)
	var out any
	must(t, json.Unmarshal(text, &out))
	return out
}

// missing names what of `sent` is not in `got`; defaults in addition are fine.
func missing(path string, got, sent any) []string {
	var out []string
	switch sent := sent.(type) {
	case map[string]any:
		there, _ := got.(map[string]any)
		for key, value := range sent {
			out = append(out, missing(path+"."+key, there[key], value)...)
		}
	case []any:
		there, _ := got.([]any)
		if len(there) < len(sent) {
			return []string{fmt.Sprintf("%s: %v instead of %v", path, got, sent)}
		}
		for i, value := range sent {
			out = append(out, missing(fmt.Sprintf("%s[%d]", path, i), there[i], value)...)
		}
	default:
		if got != sent && sent != nil {
			out = append(out, fmt.Sprintf("%s: %v instead of %v", path, got, sent))
		}
	}
	return out
}

func ptr[T any](value T) *T { return &value }
