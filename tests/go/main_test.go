// Package client has tests of an API server through client-go and
// controller-runtime, as programs use them that nobody here wrote. They know
// nothing of Usher: they run against whatever $KUBECONFIG names, and have to
// pass against a real kube-apiserver as well (USHER_AGAINST=real).
package client

import (
	"context"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is how long a state may take to come; far more than it does take.
const patience = 60 * time.Second

// connect returns a configuration for the server under test, without the
// client's own rate limit, which would only slow the tests down.
func connect(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	config.QPS = -1
	return config
}

func typed(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(connect(t))
	must(t, err)
	return client
}

// namespace makes one for this test alone.
func namespace(t *testing.T) string {
	t.Helper()
	client := typed(t)
	made, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "go-"}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.Background(), made.Name, metav1.DeleteOptions{})
	})
	// Until the namespace has its account, a real cluster admits no pod.
	eventually(t, "a default service account", func(ctx context.Context) bool {
		_, err := client.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return made.Name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(format, args...)
	}
}

// eventually waits for a state.
func eventually(t *testing.T, what string, holds func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return holds(ctx), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// idleJob never has pods, so that what controllers do differently does not show.
func idleJob(name string) *batchv1.Job {
	yes, three := true, int32(3)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{
			Suspend: &yes, Parallelism: &three, Completions: &three,
			Template: corev1.PodTemplateSpec{Spec: idleSpec()},
		},
	}
}

// idleSpec is of a pod that no scheduler places.
func idleSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:   corev1.RestartPolicyNever,
		SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/never"}},
		Containers:      []corev1.Container{{Name: "main", Image: "registry.invalid/image"}},
	}
}

// recorder notes the requests that pass through it.
type recorder struct {
	next http.RoundTripper
	lock sync.Mutex
	seen []*http.Request
}

func record(config *rest.Config) *recorder {
	recorder := &recorder{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		recorder.next = next
		return recorder
	})
	return recorder
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	r.lock.Lock()
	r.seen = append(r.seen, request)
	r.lock.Unlock()
	return r.next.RoundTrip(request)
}

func (r *recorder) any(holds func(*http.Request) bool) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, request := range r.seen {
		if holds(request) {
			return true
		}
	}
	return false
}
