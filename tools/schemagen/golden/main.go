// Golden reads objects, one `group/version Kind JSON` a line, and prints what Kubernetes' own Go types make of each: the
// JSON they write back, the protobuf bytes in base64, the strict decoding problems, or the error.
//
//	go run ./golden < ../../crates/schema/testdata/objects.txt > ../../crates/schema/testdata/golden.txt
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	crd "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	kjson "sigs.k8s.io/json"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistration.AddToScheme, authentication.AddToScheme, authorization.AddToScheme, batch.AddToScheme,
		coordination.AddToScheme, core.AddToScheme, events.AddToScheme, node.AddToScheme, policy.AddToScheme, rbac.AddToScheme,
		scheduling.AddToScheme, crd.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if lines.Text() == "" || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		words := strings.SplitN(lines.Text(), " ", 3)
		gv, err := schema.ParseGroupVersion(words[0])
		if err != nil {
			panic(err)
		}
		object, err := scheme.New(gv.WithKind(words[1]))
		if err != nil {
			panic(err)
		}
		fmt.Println("object", lines.Text())
		show(scheme, object, words[2])
		fmt.Println()
	}
}

func show(scheme *runtime.Scheme, object runtime.Object, text string) {
	strict, err := kjson.UnmarshalStrict([]byte(text), object)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	for _, problem := range strict {
		fmt.Println("strict", problem)
	}
	out, err := json.Marshal(object)
	if err != nil {
		fmt.Println("unwritable", err)
		return
	}
	fmt.Println("json", string(out))
	bytes, err := runtime.Encode(protobuf.NewSerializer(scheme, scheme), object)
	if err != nil {
		panic(err)
	}
	fmt.Println("proto", base64.StdEncoding.EncodeToString(bytes))
}
