// Schemagen prints the facts about Kubernetes types that Usher needs and that no Rust crate carries: protobuf field
// numbers, when Go's encoder leaves a field out, merge keys, list types, enum values and defaults. Names and numbers
// only. The output is crates/schema/facts/types.txt; its grammar is described in crates/schema/src/builtin.rs.
//
//	go run . > ../../crates/schema/facts/types.txt
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// scalars maps Go types with their own encoding to the names that the facts file uses for them.
var scalars = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":       "time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":  "microtime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":   "duration",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":   "quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString": "intorstring",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":    "raw",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":   "fields",
	apiextensions + ".JSON":                           "json",
	apiextensions + ".JSONSchemaPropsOrBool":          "schemaorbool",
	apiextensions + ".JSONSchemaPropsOrArray":         "schemaorarray",
	apiextensions + ".JSONSchemaPropsOrStringArray":   "schemaorstrings",
}

const apiextensions = "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

type generator struct {
	definitions map[string]common.OpenAPIDefinition
	types       map[string]reflect.Type
	todo        []reflect.Type
	out         *bufio.Writer
}

func main() {
	g := &generator{
		definitions: openapi.GetOpenAPIDefinitions(func(name string) spec.Ref {
			return spec.MustCreateRef("#/definitions/" + name)
		}),
		types: map[string]reflect.Type{},
		out:   bufio.NewWriter(os.Stdout),
	}
	defer g.out.Flush()
	fmt.Fprintln(g.out, "# Made by tools/schemagen; do not edit. The grammar is in crates/schema/src/builtin.rs.")
	for _, group := range served {
		for _, object := range group.objects {
			t := reflect.TypeOf(object)
			fmt.Fprintf(g.out, "kind %s %s %s\n", strings.TrimPrefix(group.name+"/"+group.version, "/"), t.Name(), modelName(t))
			g.need(t)
		}
	}
	for len(g.todo) > 0 {
		t := g.todo[0]
		g.todo = g.todo[1:]
		g.visit(t)
	}
	names := make([]string, 0, len(g.types))
	for name := range g.types {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		g.print(name, g.types[name])
	}
}

func (g *generator) need(t reflect.Type) {
	name := modelName(t)
	if _, seen := g.types[name]; !seen {
		g.types[name] = t
		g.todo = append(g.todo, t)
	}
}

// visit asks for the struct types that the fields of t mention.
func (g *generator) visit(t reflect.Type) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("json") != "-" && f.IsExported() {
			g.typeText(f.Type)
		}
	}
}

func (g *generator) print(name string, t reflect.Type) {
	definition, ok := g.definitions[name]
	if !ok {
		fatal("no OpenAPI definition of %s", name)
	}
	schema := definition.Schema
	fmt.Fprintf(g.out, "\ntype %s", name)
	if kind, ok := schema.Extensions.GetString("x-kubernetes-map-type"); ok {
		fmt.Fprintf(g.out, " map=%s", kind)
	}
	if unions, ok := schema.Extensions["x-kubernetes-unions"]; ok {
		fmt.Fprintf(g.out, " unions=%s", compact(unions))
	}
	fmt.Fprintln(g.out)
	required := map[string]bool{}
	for _, name := range schema.Required {
		required[name] = true
	}
	for i := range t.NumField() {
		field := t.Field(i)
		tag := strings.Split(field.Tag.Get("json"), ",")
		if tag[0] == "-" || !field.IsExported() {
			continue
		}
		if field.Anonymous && tag[0] == "" {
			fmt.Fprintf(g.out, "  + %s %s\n", number(field), g.typeText(field.Type))
			continue
		}
		if tag[0] == "" {
			fatal("%s.%s has no JSON name", name, field.Name)
		}
		fmt.Fprintf(g.out, "  %s %s %s %s", tag[0], number(field), g.typeText(field.Type), presence(field, tag[1:]))
		if required[tag[0]] {
			fmt.Fprint(g.out, " required")
		}
		property, ok := schema.Properties[tag[0]]
		if !ok {
			fatal("%s.%s is not in OpenAPI", name, tag[0])
		}
		g.attributes(field.Type, field.Tag, property)
		fmt.Fprintln(g.out)
	}
}

// attributes prints what OpenAPI knows about a field beyond its Go type.
func (g *generator) attributes(t reflect.Type, tag reflect.StructTag, property spec.Schema) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if list, ok := property.Extensions.GetString("x-kubernetes-list-type"); ok {
		fmt.Fprintf(g.out, " list=%s", list)
		if keys, ok := property.Extensions.GetStringSlice("x-kubernetes-list-map-keys"); ok {
			fmt.Fprintf(g.out, ":%s", strings.Join(keys, ","))
		}
	}
	if kind, ok := property.Extensions.GetString("x-kubernetes-map-type"); ok {
		fmt.Fprintf(g.out, " map=%s", kind)
	}
	if strategy := tag.Get("patchStrategy"); strategy != "" {
		fmt.Fprintf(g.out, " patch=%s", strategy)
		if key := tag.Get("patchMergeKey"); key != "" {
			fmt.Fprintf(g.out, ":%s", key)
		}
	}
	if property.Format != "" && property.Format != "int32" && property.Format != "int64" && property.Format != "double" && property.Format != "byte" {
		fmt.Fprintf(g.out, " format=%s", property.Format)
	}
	if len(property.Enum) > 0 {
		fmt.Fprintf(g.out, " enum=%s", compact(property.Enum))
	}
	if property.Default != nil {
		fmt.Fprintf(g.out, " default=%s", compact(property.Default))
	}
	if inner := elements(property); inner != nil {
		if len(inner.Enum) > 0 {
			fmt.Fprintf(g.out, " items.enum=%s", compact(inner.Enum))
		}
		if inner.Default != nil {
			fmt.Fprintf(g.out, " items.default=%s", compact(inner.Default))
		}
	}
	if minimum := property.Minimum; minimum != nil {
		fatal("minimum is not carried over")
	}
	if named := t.Name() != "" && t.PkgPath() != ""; named && (t.Kind() == reflect.Map || t.Kind() == reflect.Slice) {
		fmt.Fprintf(g.out, " go=%s", t)
	}
}

func elements(property spec.Schema) *spec.Schema {
	if property.Items != nil {
		return property.Items.Schema
	}
	if property.AdditionalProperties != nil {
		return property.AdditionalProperties.Schema
	}
	return nil
}

// typeText writes a type: `string`, `string/v1.Protocol` (a named string), `[]T`, `{}T` (a map), `@definition`.
func (g *generator) typeText(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := scalars[t.PkgPath()+"."+t.Name()]; ok {
		return name
	}
	switch t.Kind() {
	case reflect.Struct:
		g.need(t)
		return "@" + modelName(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + g.typeText(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			fatal("map with keys of %s", t.Key())
		}
		return "{}" + g.typeText(t.Elem())
	}
	base, ok := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "bool", reflect.Int32: "int32", reflect.Int64: "int64", reflect.Float64: "double",
	}[t.Kind()]
	if !ok {
		fatal("unexpected type %s", t)
	}
	if t.PkgPath() != "" {
		return base + "/" + t.String()
	}
	return base
}

// presence says when Go's encoder writes the field: see Presence in graph.rs.
func presence(field reflect.StructField, options []string) string {
	omit := map[string]bool{}
	for _, option := range options {
		omit[option] = true
	}
	kind := field.Type.Kind()
	switch {
	case omit["inline"] || omit["string"]:
		fatal("unexpected JSON option on %s", field.Name)
	case !omit["omitempty"] && !omit["omitzero"] && kind == reflect.Pointer:
		return "null"
	case !omit["omitempty"] && !omit["omitzero"]:
		return "always"
	case kind == reflect.Pointer:
		return "set"
	case kind == reflect.Struct && !omit["omitzero"]:
		return "struct"
	}
	return "nonzero"
}

// number is the protobuf field number, 0 where the field has none.
func number(field reflect.StructField) string {
	tag := strings.Split(field.Tag.Get("protobuf"), ",")
	if len(tag) < 2 {
		return "0"
	}
	return tag[1]
}

func modelName(t reflect.Type) string {
	if named, ok := reflect.New(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	fatal("%s has no OpenAPI name", t)
	return ""
}

func compact(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		fatal("%v", err)
	}
	return strings.ReplaceAll(string(text), " ", `\u0020`)
}

func fatal(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
