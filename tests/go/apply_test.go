package client

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	batchac "k8s.io/client-go/applyconfigurations/batch/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	toolsrecord "k8s.io/client-go/tools/record"
)

func TestApplyConfigurationsShareAnObject(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	jobs := client.BatchV1().Jobs(ns)
	container := func(image string) *coreac.ContainerApplyConfiguration {
		return coreac.Container().WithName("main").WithImage(image)
	}
	wanted := batchac.Job("j", ns).WithLabels(map[string]string{"team": "a"}).WithSpec(batchac.JobSpec().WithSuspend(true).WithParallelism(2).
		WithTemplate(coreac.PodTemplateSpec().WithSpec(coreac.PodSpec().WithRestartPolicy(corev1.RestartPolicyNever).WithContainers(container("one")))))
	made, err := jobs.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: "first"})
	must(t, err)
	check(t, *made.Spec.Parallelism == 2 && *made.Spec.BackoffLimit == 6, "%+v", made.Spec)
	again, err := jobs.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: "first"})
	must(t, err)
	check(t, again.ResourceVersion == made.ResourceVersion, "applying the same again made %s of %s", again.ResourceVersion, made.ResourceVersion)

	theirs := batchac.Job("j", ns).WithLabels(map[string]string{"cost": "7"}).WithSpec(batchac.JobSpec().WithParallelism(5))
	_, err = jobs.Apply(ctx, theirs, metav1.ApplyOptions{FieldManager: "second"})
	check(t, apierrors.IsConflict(err) && strings.Contains(err.Error(), `conflict with "first": .spec.parallelism`), "a conflict: %v", err)
	forced, err := jobs.Apply(ctx, theirs, metav1.ApplyOptions{FieldManager: "second", Force: true})
	must(t, err)
	check(t, *forced.Spec.Parallelism == 5 && forced.Labels["team"] == "a" && forced.Labels["cost"] == "7", "%+v", forced)

	mine, err := batchac.ExtractJob(forced, "first")
	must(t, err)
	check(t, mine.Spec.Parallelism == nil && *mine.Spec.Suspend && mine.Labels["cost"] == "", "%+v", mine)
	// What is no longer applied, and nobody else's, goes away.
	fewer, err := jobs.Apply(ctx, batchac.Job("j", ns).WithSpec(batchac.JobSpec().WithParallelism(5)), metav1.ApplyOptions{FieldManager: "second"})
	must(t, err)
	_, there := fewer.Labels["cost"]
	check(t, !there && fewer.Labels["team"] == "a", "%v", fewer.Labels)

	status, err := jobs.ApplyStatus(ctx, batchac.Job("j", ns).WithStatus(batchac.JobStatus().WithConditions(batchac.JobCondition().
		WithType("example.com/Seen").WithStatus(corev1.ConditionTrue).WithReason("Test").WithMessage("seen").WithLastTransitionTime(metav1.Now()))), metav1.ApplyOptions{FieldManager: "status"})
	must(t, err)
	check(t, hasCondition(status, "example.com/Seen"), "%+v", status.Status)
	entry := func(manager string) *metav1.ManagedFieldsEntry {
		for i, it := range status.ManagedFields {
			if it.Manager == manager {
				return &status.ManagedFields[i]
			}
		}
		t.Fatalf("%s manages nothing of %+v", manager, status.ManagedFields)
		return nil
	}
	check(t, entry("status").Subresource == "status" && entry("first").Operation == metav1.ManagedFieldsOperationApply, "%+v", status.ManagedFields)

	// A list by key: two managers, one container each.
	pods := client.CoreV1().Pods(ns)
	pod := func(name string) *coreac.PodApplyConfiguration {
		return coreac.Pod("p", ns).WithSpec(coreac.PodSpec().WithSchedulingGates(coreac.PodSchedulingGate().WithName("example.com/never")).
			WithContainers(coreac.Container().WithName(name).WithImage("registry.invalid/" + name)))
	}
	_, err = pods.Apply(ctx, pod("a"), metav1.ApplyOptions{FieldManager: "first"})
	must(t, err)
	_, err = pods.Apply(ctx, pod("a").WithOwnerReferences(metaac.OwnerReference().WithAPIVersion("batch/v1").WithKind("Job").WithName("j").WithUID(made.UID)), metav1.ApplyOptions{FieldManager: "second"})
	must(t, err)
	_, err = pods.Apply(ctx, pod("b"), metav1.ApplyOptions{FieldManager: "third"})
	check(t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err), "a second container in a pod that exists: %v", err)
	_, err = client.CoreV1().ConfigMaps(ns).Apply(ctx, coreac.ConfigMap("m", ns), metav1.ApplyOptions{})
	check(t, err != nil && strings.Contains(err.Error(), "fieldManager"), "an apply of nobody: %v", err)
}

func hasCondition(job *batchv1.Job, wanted batchv1.JobConditionType) bool {
	for _, it := range job.Status.Conditions {
		if it.Type == wanted {
			return true
		}
	}
	return false
}

func TestEventsOfBothGroupsAreTheSameEvents(t *testing.T) {
	client, ns := typed(t), namespace(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	object, err := client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "it"}}, metav1.CreateOptions{})
	must(t, err)

	old := toolsrecord.NewBroadcaster(toolsrecord.WithContext(ctx))
	old.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	older := old.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "old-tester"})
	for range 3 {
		older.Eventf(object, corev1.EventTypeNormal, "Told", "told by the %s way", "old")
	}
	eventually(t, "one event counted three times", func(ctx context.Context) bool {
		list, err := client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Told,involvedObject.name=it"})
		return err == nil && len(list.Items) == 1 && list.Items[0].Count == 3
	})
	seen, err := client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Told"})
	must(t, err)
	check(t, len(seen.Items) == 1 && seen.Items[0].DeprecatedCount == 3 && seen.Items[0].Note == "told by the old way" && seen.Items[0].Regarding.UID == object.UID, "%+v", seen.Items)

	modern := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	must(t, modern.StartRecordingToSinkWithContext(ctx))
	newer := modern.NewRecorder(scheme.Scheme, "new-tester")
	for range 2 {
		newer.Eventf(object, nil, corev1.EventTypeWarning, "Noted", "Noting", "noted by the %s way", "new")
	}
	var noted []eventsv1.Event
	eventually(t, "an event with a series", func(ctx context.Context) bool {
		list, err := client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Noted"})
		if err == nil {
			noted = list.Items
		}
		return len(noted) == 1 && noted[0].Series != nil && noted[0].Series.Count == 2
	})
	core, err := client.CoreV1().Events(ns).Get(ctx, noted[0].Name, metav1.GetOptions{})
	must(t, err)
	check(t, core.UID == noted[0].UID && core.Message == "noted by the new way" && core.ReportingController == "new-tester" && core.Action == "Noting" &&
		time.Since(core.EventTime.Time) < patience*2, "%+v", core)
	_, err = client.EventsV1().Events(ns).Patch(ctx, noted[0].Name, types.MergePatchType, []byte(`{"reportingController":"other"}`), metav1.PatchOptions{})
	check(t, apierrors.IsInvalid(err), "an event changed its reporter: %v", err)
}
