package client

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	watchtools "k8s.io/client-go/tools/watch"
)

// tally counts what an informer tells.
type tally struct {
	lock                    sync.Mutex
	added, updated, deleted map[string]int
}

func watching(informer cache.SharedIndexInformer) *tally {
	it := &tally{added: map[string]int{}, updated: map[string]int{}, deleted: map[string]int{}}
	note := func(counts map[string]int, object any) {
		key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		_, name, _ := cache.SplitMetaNamespaceKey(key)
		it.lock.Lock()
		defer it.lock.Unlock()
		counts[name]++
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { note(it.added, object) },
		UpdateFunc: func(_, object any) { note(it.updated, object) },
		DeleteFunc: func(object any) { note(it.deleted, object) },
	})
	return it
}

func (t *tally) saw(counts map[string]int, name string) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return counts[name] > 0
}

func TestSharedInformersFollowByWatchList(t *testing.T) {
	config, ctx, ns := connect(t), t.Context(), namespace(t)
	requests := record(config)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	maps := client.CoreV1().ConfigMaps(ns)
	make := func(name, shade string) *corev1.ConfigMap {
		made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"shade": shade}}}, metav1.CreateOptions{})
		must(t, err)
		return made
	}
	for i := range 20 {
		make(fmt.Sprintf("before-%d", i), "dark")
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ns),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = "shade=dark" }))
	informer := factory.Core().V1().ConfigMaps()
	seen := watching(informer.Informer())
	jobs := factory.Batch().V1().Jobs().Informer()
	factory.StartWithContext(ctx)
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		check(t, synced, "%v did not sync", kind)
	}
	check(t, jobs.HasSynced(), "jobs did not sync")
	check(t, requests.any(func(r *http.Request) bool {
		return r.URL.Query().Get("sendInitialEvents") == "true" && r.URL.Query().Get("resourceVersionMatch") == "NotOlderThan"
	}), "no watch-list was asked for")
	check(t, !requests.any(func(r *http.Request) bool {
		return r.Method == "GET" && r.URL.Query().Get("watch") == "" && r.URL.Path == "/api/v1/namespaces/"+ns+"/configmaps"
	}), "the informer fell back to a list")
	all, err := informer.Lister().ConfigMaps(ns).List(labels.Everything())
	must(t, err)
	check(t, len(all) == 20, "%d in the cache", len(all))

	make("light", "light")
	dark := make("dark", "dark")
	eventually(t, "the new one", func(context.Context) bool { return seen.saw(seen.added, "dark") })
	dark.Data = map[string]string{"more": "words"}
	dark, err = maps.Update(ctx, dark, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "its change", func(context.Context) bool { return seen.saw(seen.updated, "dark") })
	// It leaves the selection without being deleted.
	dark.Labels["shade"] = "light"
	_, err = maps.Update(ctx, dark, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "its leaving", func(context.Context) bool { return seen.saw(seen.deleted, "dark") })
	must(t, maps.Delete(ctx, "before-0", metav1.DeleteOptions{}))
	eventually(t, "a deletion", func(context.Context) bool { return seen.saw(seen.deleted, "before-0") })
	check(t, !seen.saw(seen.added, "light"), "told of what was not selected")
}

func TestMetadataInformersSeeMetadataOnly(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	meta, err := metadata.NewForConfig(connect(t))
	must(t, err)
	resource := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	factory := metadatainformer.NewFilteredSharedInformerFactory(meta, 0, ns, nil)
	informer := factory.ForResource(resource)
	seen := watching(informer.Informer())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	_, err = client.BatchV1().Jobs(ns).Create(ctx, idleJob("j"), metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the job", func(context.Context) bool { return seen.saw(seen.added, "j") })
	got, err := meta.Resource(resource).Namespace(ns).Get(ctx, "j", metav1.GetOptions{})
	must(t, err)
	check(t, got.Name == "j" && got.UID != "", "%+v", got)
	list, err := meta.Resource(resource).Namespace(ns).List(ctx, metav1.ListOptions{})
	must(t, err)
	check(t, len(list.Items) == 1, "%+v", list)
	must(t, meta.Resource(resource).Namespace(ns).Delete(ctx, "j", metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationBackground)}))
	eventually(t, "its end", func(context.Context) bool { return seen.saw(seen.deleted, "j") })
}

func TestWatchesBeginAndEndWhereTheyAreTold(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	maps := client.CoreV1().ConfigMaps(ns)
	first, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "second"}}, metav1.CreateOptions{})
	must(t, err)
	must(t, maps.Delete(ctx, "second", metav1.DeleteOptions{}))
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, first.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, options)
		}})
	must(t, err)
	defer watcher.Stop()
	for _, expected := range []watch.EventType{watch.Added, watch.Deleted} {
		select {
		case event := <-watcher.ResultChan():
			check(t, event.Type == expected && event.Object.(*corev1.ConfigMap).Name == "second", "%v instead of %v", event, expected)
		case <-time.After(patience):
			t.Fatalf("no %v", expected)
		}
	}
	one := metav1.ListOptions{FieldSelector: "metadata.name=first", TimeoutSeconds: ptr(int64(1))}
	short, err := maps.Watch(ctx, one)
	must(t, err)
	count := 0
	for range short.ResultChan() {
		count++
	}
	check(t, count == 1, "%d events in a watch of one object", count)
}

func TestLeadershipPassesByLease(t *testing.T) {
	client, ns := typed(t), namespace(t)
	var lock sync.Mutex
	var leaders []string
	run := func(ctx context.Context, name string) {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Name: "election", Namespace: ns},
				Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: name}},
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { lock.Lock(); defer lock.Unlock(); leaders = append(leaders, name) },
				OnStoppedLeading: func() {},
			},
		})
	}
	led := func(count int) func(context.Context) bool {
		return func(context.Context) bool { lock.Lock(); defer lock.Unlock(); return len(leaders) == count }
	}
	ctx, stop := context.WithCancel(t.Context())
	go run(ctx, "one")
	eventually(t, "a leader", led(1))
	other, stopOther := context.WithCancel(t.Context())
	defer stopOther()
	go run(other, "two")
	stop()
	eventually(t, "the next leader", led(2))
	check(t, leaders[0] == "one" && leaders[1] == "two", "%v", leaders)
	lease, err := client.CoordinationV1().Leases(ns).Get(t.Context(), "election", metav1.GetOptions{})
	must(t, err)
	check(t, *lease.Spec.HolderIdentity == "two" && *lease.Spec.LeaseTransitions == 1, "%+v", lease.Spec)
}
