"""Drives the API server that $KUBECONFIG names with the Python client.

Each test works in a namespace of its own. Nothing here knows that the server is
not kube-apiserver, and all of it holds against a real one.
"""

import json
import threading
import unittest
import uuid

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def config_map(name, labels=None, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels), data=data)


def job(name):
    container = client.V1Container(name="main", image="busybox", command=["true"])
    template = client.V1PodTemplateSpec(spec=client.V1PodSpec(restart_policy="Never", containers=[container]))
    return client.V1Job(metadata=client.V1ObjectMeta(name=name), spec=client.V1JobSpec(template=template, suspend=True))


class Case(unittest.TestCase):
    def setUp(self):
        self.api = config.new_client_from_config()
        self.addCleanup(self.api.close)
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.namespace = "py-" + uuid.uuid4().hex[:8]
        self.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=self.namespace)))
        self.addCleanup(self.core.delete_namespace, self.namespace)

    def refused(self, status, reason, call, *args, **kwargs):
        with self.assertRaises(ApiException) as raised:
            call(*args, **kwargs)
        answer = json.loads(raised.exception.body)
        self.assertEqual((raised.exception.status, answer["kind"], answer["reason"]), (status, "Status", reason))
        return answer

    def create_maps(self, *names, **labels):
        return [self.core.create_namespaced_config_map(self.namespace, config_map(name, labels)) for name in names]


class Objects(Case):
    def test_a_created_object_reads_back_equal(self):
        made = self.core.create_namespaced_config_map(self.namespace, config_map("a", {"x": "y"}, k="v"))
        self.assertEqual(made, self.core.read_namespaced_config_map("a", self.namespace))
        self.assertEqual((made.data, made.metadata.labels), ({"k": "v"}, {"x": "y"}))
        self.assertIsNotNone(made.metadata.uid)
        self.assertIsNotNone(made.metadata.creation_timestamp.tzinfo)

    def test_a_job_gets_its_defaults(self):
        made = self.batch.create_namespaced_job(self.namespace, job("work"))
        self.assertEqual((made.spec.parallelism, made.spec.completions, made.spec.backoff_limit), (1, 1, 6))
        self.assertEqual(made.spec.completion_mode, "NonIndexed")
        self.assertEqual(made.spec.selector.match_labels["batch.kubernetes.io/controller-uid"], made.metadata.uid)
        self.assertEqual(made.spec.template.spec.termination_grace_period_seconds, 30)

    def test_a_replace_needs_the_current_revision(self):
        made = self.core.create_namespaced_config_map(self.namespace, config_map("a", k="1"))
        made.data = {"k": "2"}
        replaced = self.core.replace_namespaced_config_map("a", self.namespace, made)
        self.assertNotEqual(replaced.metadata.resource_version, made.metadata.resource_version)
        made.data = {"k": "3"}
        self.refused(409, "Conflict", self.core.replace_namespaced_config_map, "a", self.namespace, made)
        self.assertEqual(self.core.read_namespaced_config_map("a", self.namespace).data, {"k": "2"})

    def test_a_dry_run_leaves_nothing(self):
        self.core.create_namespaced_config_map(self.namespace, config_map("a"), dry_run="All")
        self.refused(404, "NotFound", self.core.read_namespaced_config_map, "a", self.namespace)

    def test_generated_names_differ(self):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="some-"))
        names = {self.core.create_namespaced_config_map(self.namespace, body).metadata.name for _ in range(5)}
        self.assertEqual(len(names), 5)
        self.assertTrue(all(name.startswith("some-") and len(name) == 10 for name in names))

    def test_status_is_written_apart_from_spec(self):
        self.batch.create_namespaced_job(self.namespace, job("work"))
        body = {"status": {"active": 2}, "spec": {"parallelism": 9}}
        patched = self.batch.patch_namespaced_job_status("work", self.namespace, body)
        self.assertEqual((patched.status.active, patched.spec.parallelism), (2, 1))
        patched = self.batch.patch_namespaced_job("work", self.namespace, body)
        self.assertEqual((patched.status.active, patched.spec.parallelism), (2, 9))

    def test_yaml_files_can_be_created(self):
        documents = [
            {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron"}, "spec": {
                "schedule": "0 * * * *", "jobTemplate": {"spec": {"template": {"spec": {
                    "restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}}}}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"a": "b"}},
        ]
        for document in documents:
            utils.create_from_dict(self.api, document, namespace=self.namespace)
        self.assertEqual(self.batch.read_namespaced_cron_job("cron", self.namespace).spec.concurrency_policy, "Allow")
        self.assertEqual(self.core.read_namespaced_secret("secret", self.namespace).data, {"a": "Yg=="})

    def test_a_token_of_a_service_account_is_accepted(self):
        self.core.create_namespaced_service_account(
            self.namespace, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="robot")))
        request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600))
        token = self.core.create_namespaced_service_account_token("robot", self.namespace, request).status.token
        settings = client.Configuration()
        settings.host, settings.ssl_ca_cert = self.api.configuration.host, self.api.configuration.ssl_ca_cert
        settings.api_key = {"authorization": "Bearer " + token}
        with client.ApiClient(settings) as robot:
            who = client.AuthenticationV1Api(robot).create_self_subject_review(client.V1SelfSubjectReview())
            self.assertEqual(who.status.user_info.username, f"system:serviceaccount:{self.namespace}:robot")
            self.refused(403, "Forbidden", client.CoreV1Api(robot).list_namespaced_secret, self.namespace)


class Lists(Case):
    def test_selectors_choose(self):
        self.create_maps("a", "b", tier="front")
        self.create_maps("c", tier="back")
        def names(**how):
            return [item.metadata.name for item in self.core.list_namespaced_config_map(self.namespace, **how).items]
        self.assertEqual(names(label_selector="tier=front"), ["a", "b"])
        self.assertEqual(names(label_selector="tier notin (front)", field_selector="metadata.name!=kube-root-ca.crt"), ["c"])
        self.assertEqual(names(field_selector="metadata.name=b"), ["b"])
        self.assertEqual(
            [item.metadata.name for item in self.core.list_config_map_for_all_namespaces(
                label_selector="tier", field_selector=f"metadata.namespace={self.namespace}").items], ["a", "b", "c"])

    def test_pages_show_one_moment(self):
        self.create_maps("a", "b", "c", "d", "e", paged="yes")
        seen, token, revisions = [], None, set()
        while True:
            page = self.core.list_namespaced_config_map(self.namespace, label_selector="paged", limit=2, _continue=token)
            seen += [item.metadata.name for item in page.items]
            revisions.add(page.metadata.resource_version)
            self.create_maps(f"late-{len(seen)}", paged="yes")
            token = page.metadata._continue
            if not token:
                break
        self.assertEqual(seen, ["a", "b", "c", "d", "e"])
        self.assertEqual(len(revisions), 1)

    def test_a_collection_is_deleted_by_selector(self):
        self.create_maps("a", "b", gone="yes")
        self.create_maps("c", gone="no")
        self.core.delete_collection_namespaced_config_map(self.namespace, label_selector="gone=yes")
        left = self.core.list_namespaced_config_map(self.namespace, label_selector="gone")
        self.assertEqual([item.metadata.name for item in left.items], ["c"])


class Watches(Case):
    def test_a_watch_tells_what_happened_after_the_list(self):
        start = self.core.list_namespaced_config_map(self.namespace).metadata.resource_version
        self.create_maps("a", "b", seen="yes")
        self.core.patch_namespaced_config_map("a", self.namespace, {"data": {"k": "v"}})
        self.core.patch_namespaced_config_map("b", self.namespace, {"metadata": {"labels": {"seen": None}}})
        self.core.delete_namespaced_config_map("a", self.namespace)
        events = []
        for event in watch.Watch().stream(self.core.list_namespaced_config_map, self.namespace, label_selector="seen=yes",
                                          resource_version=start, timeout_seconds=30):
            self.assertIsInstance(event["object"], client.V1ConfigMap)
            events.append((event["type"], event["object"].metadata.name))
            if len(events) == 5:
                break
        self.assertEqual(events, [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a")])

    def test_a_watch_without_a_revision_begins_with_what_is_there(self):
        self.create_maps("a", "b", seen="yes")
        stream = watch.Watch().stream(self.core.list_namespaced_config_map, self.namespace,
                                      label_selector="seen=yes", timeout_seconds=1)
        self.assertEqual([(event["type"], event["object"].metadata.name) for event in stream], [("ADDED", "a"), ("ADDED", "b")])

    def test_a_cache_fed_by_list_and_watch_ends_up_equal_to_the_list(self):
        def write():
            for i in range(60):
                name = f"m-{i % 7}"
                body = {"apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": {"name": name, "labels": {"cached": "yes"}}, "data": {"i": str(i)}}
                try:
                    if i % 5 == 4:
                        self.core.delete_namespaced_config_map(name, self.namespace)
                    else:
                        self.core.patch_namespaced_config_map(
                            name, self.namespace, body, field_manager="writer", _content_type=APPLY_PATCH)
                except ApiException as error:
                    if error.status != 404:
                        raise
            self.create_maps("last", cached="yes")

        listed = self.core.list_namespaced_config_map(self.namespace, label_selector="cached")
        cache = {item.metadata.name: item.metadata.resource_version for item in listed.items}
        writer = threading.Thread(target=write)
        writer.start()
        for event in watch.Watch().stream(self.core.list_namespaced_config_map, self.namespace, label_selector="cached",
                                          resource_version=listed.metadata.resource_version, allow_watch_bookmarks=True,
                                          timeout_seconds=60):
            name, revision = (event["raw_object"]["metadata"].get(key) for key in ("name", "resourceVersion"))
            if event["type"] == "DELETED":
                del cache[name]
            elif event["type"] != "BOOKMARK":
                self.assertEqual(event["type"] == "MODIFIED", name in cache)
                cache[name] = revision
            if name == "last":
                break
        writer.join()
        now = self.core.list_namespaced_config_map(self.namespace, label_selector="cached")
        self.assertEqual(cache, {item.metadata.name: item.metadata.resource_version for item in now.items})

    def test_a_pod_can_be_followed(self):
        container = client.V1Container(name="main", image="busybox")
        body = client.V1Pod(metadata=client.V1ObjectMeta(name="pod"), spec=client.V1PodSpec(containers=[container]))
        appears(self, lambda: self.core.read_namespaced_service_account("default", self.namespace))
        self.core.create_namespaced_pod(self.namespace, body)
        self.core.patch_namespaced_pod_status("pod", self.namespace, {"status": {"phase": "Running"}})
        phases = []
        for event in watch.Watch().stream(self.core.list_namespaced_pod, self.namespace, timeout_seconds=30):
            phases.append(event["object"].status.phase)
            if phases[-1] == "Running":
                break
        self.assertEqual(phases[-1], "Running")
        self.refused(400, "BadRequest", self.core.read_namespaced_pod_log, "pod", self.namespace, container="none")


def appears(case, call):
    """Until the controllers have done what they do for every namespace."""
    for _ in range(300):
        try:
            return call()
        except ApiException as error:
            if error.status != 404:
                raise
        threading.Event().wait(0.1)
    case.fail("it did not appear")


class Patches(Case):
    def setUp(self):
        super().setUp()
        made = job("work")
        made.metadata.labels = {"a": "1", "b": "2"}
        made.spec.template.spec.tolerations = [client.V1Toleration(key="t", operator="Exists")]
        self.batch.create_namespaced_job(self.namespace, made)

    def patch(self, body, **how):
        return self.batch.patch_namespaced_job("work", self.namespace, body, **how)

    def test_a_list_is_a_json_patch(self):
        patched = self.patch([{"op": "test", "path": "/metadata/labels/a", "value": "1"},
                              {"op": "remove", "path": "/metadata/labels/a"},
                              {"op": "add", "path": "/metadata/labels/c", "value": "3"}])
        self.assertEqual({key: patched.metadata.labels.get(key) for key in "abc"}, {"a": None, "b": "2", "c": "3"})
        self.refused(422, "Invalid", self.patch, [{"op": "test", "path": "/metadata/labels/b", "value": "9"}])

    def test_a_strategic_merge_patch_merges_containers_by_name(self):
        resources = {"requests": {"cpu": "250m"}}
        body = {"spec": {"template": {"spec": {"containers": [{"name": "main", "resources": resources}]}}}}
        container, = self.patch(body, _content_type=STRATEGIC_PATCH).spec.template.spec.containers
        self.assertEqual((container.image, container.resources.requests), ("busybox", {"cpu": "250m"}))

    def test_a_merge_patch_replaces_lists_and_removes_nulls(self):
        body = {"metadata": {"labels": {"a": None}},
                "spec": {"template": {"spec": {"tolerations": [{"key": "u", "operator": "Exists"}]}}}}
        patched = self.patch(body, _content_type=MERGE_PATCH)
        self.assertNotIn("a", patched.metadata.labels)
        self.assertEqual([toleration.key for toleration in patched.spec.template.spec.tolerations], ["u"])

    def test_apply_owns_what_it_names(self):
        def apply(manager, value, **how):
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"k": value}}
            return self.core.patch_namespaced_config_map(
                "shared", self.namespace, body, field_manager=manager, _content_type=APPLY_PATCH, **how)
        made = apply("one", "1")
        entry, = made.metadata.managed_fields
        self.assertEqual((entry.manager, entry.operation, entry.fields_v1), ("one", "Apply", {"f:data": {"f:k": {}}}))
        answer = self.refused(409, "Conflict", apply, "two", "2")
        cause, = answer["details"]["causes"]
        self.assertEqual((cause["reason"], cause["field"]), ("FieldManagerConflict", ".data.k"))
        self.assertEqual(apply("two", "2", force=True).data, {"k": "2"})
        owners = self.core.read_namespaced_config_map("shared", self.namespace).metadata.managed_fields
        self.assertEqual([entry.manager for entry in owners], ["two"])

    def test_an_unknown_patch_type_is_refused(self):
        self.refused(415, "UnsupportedMediaType", self.patch, {}, _content_type="application/nope+json")


class Deletes(Case):
    def test_preconditions_hold(self):
        made, = self.create_maps("a")
        wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="00000000-0000-4000-8000-000000000000"))
        self.refused(409, "Conflict", self.core.delete_namespaced_config_map, "a", self.namespace, body=wrong)
        right = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
        self.core.delete_namespaced_config_map("a", self.namespace, body=right)
        self.refused(404, "NotFound", self.core.read_namespaced_config_map, "a", self.namespace)

    def test_dependents_follow_their_owner(self):
        owner, = self.create_maps("owner")
        reference = client.V1OwnerReference(api_version="v1", kind="ConfigMap", name="owner", uid=owner.metadata.uid)
        child = config_map("child")
        child.metadata.owner_references = [reference]
        made = self.core.create_namespaced_config_map(self.namespace, child)
        self.core.delete_namespaced_config_map("owner", self.namespace, propagation_policy="Background")
        for event in watch.Watch().stream(
                self.core.list_namespaced_config_map, self.namespace, field_selector="metadata.name=child",
                resource_version=made.metadata.resource_version, timeout_seconds=60):
            if event["type"] == "DELETED":
                return
        self.fail("the child is still there")

    def test_a_finalizer_delays_the_end(self):
        held = config_map("held")
        held.metadata.finalizers = ["example.com/hold"]
        self.core.create_namespaced_config_map(self.namespace, held)
        self.core.delete_namespaced_config_map("held", self.namespace)
        self.assertIsNotNone(self.core.read_namespaced_config_map("held", self.namespace).metadata.deletion_timestamp)
        self.core.patch_namespaced_config_map("held", self.namespace, {"metadata": {"finalizers": None}}, _content_type=MERGE_PATCH)
        self.refused(404, "NotFound", self.core.read_namespaced_config_map, "held", self.namespace)


class Errors(Case):
    def test_not_found_names_the_object(self):
        answer = self.refused(404, "NotFound", self.batch.read_namespaced_job, "none", self.namespace)
        self.assertEqual(answer["message"], 'jobs.batch "none" not found')
        self.assertEqual(answer["details"], {"name": "none", "group": "batch", "kind": "jobs"})

    def test_a_second_object_of_a_name_is_refused(self):
        self.create_maps("a")
        answer = self.refused(409, "AlreadyExists", self.create_maps, "a")
        self.assertEqual(answer["message"], 'configmaps "a" already exists')

    def test_invalid_fields_are_listed(self):
        bad = job("bad")
        bad.spec.parallelism = -1
        bad.spec.template.spec.restart_policy = "Always"
        answer = self.refused(422, "Invalid", self.batch.create_namespaced_job, self.namespace, bad)
        self.assertEqual({(cause["reason"], cause["field"]) for cause in answer["details"]["causes"]},
                         {("FieldValueInvalid", "spec.parallelism"), ("FieldValueRequired", "spec.template.spec.restartPolicy")})

    def test_unknown_fields_can_be_refused(self):
        # The typed calls check bodies themselves; this one sends what it is given.
        maps = dynamic.DynamicClient(self.api).resources.get(api_version="v1", kind="ConfigMap")
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "date": {}}
        answer = self.refused(400, "BadRequest", maps.create, body, namespace=self.namespace,
                              query_params=[("fieldValidation", "Strict")])
        self.assertIn('unknown field "date"', answer["message"])

    def test_bad_selectors_are_refused(self):
        self.refused(400, "BadRequest", self.core.list_namespaced_config_map, self.namespace, field_selector="nope=1")
        self.refused(400, "BadRequest", self.core.list_namespaced_config_map, self.namespace, label_selector="a=(")


class Custom(Case):
    def test_a_custom_resource_lives_like_any_other(self):
        group = f"{self.namespace}.example.com"
        extensions = client.ApiextensionsV1Api(self.api)
        schema = {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1, "default": 3}}},
            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"gears.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "gears", "singular": "gear", "kind": "Gear"},
                     "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                                   "schema": {"openAPIV3Schema": schema}}]}}
        extensions.create_custom_resource_definition(definition)
        self.addCleanup(extensions.delete_custom_resource_definition, f"gears.{group}")
        custom = client.CustomObjectsApi(self.api)
        where = {"group": group, "version": "v1", "namespace": self.namespace, "plural": "gears"}
        appears(self, lambda: custom.list_namespaced_custom_object(**where))

        gear = {"apiVersion": f"{group}/v1", "kind": "Gear", "metadata": {"name": "a"}, "spec": {"unknown": 1}}
        self.assertEqual(custom.create_namespaced_custom_object(body=gear, **where)["spec"], {"size": 3})
        self.refused(422, "Invalid", custom.patch_namespaced_custom_object, name="a", body={"spec": {"size": 0}}, **where)
        custom.patch_namespaced_custom_object_status(name="a", body={"status": {"ready": True}}, **where)
        for event in watch.Watch().stream(custom.list_namespaced_custom_object, timeout_seconds=30, **where):
            self.assertEqual((event["type"], event["object"]["status"]), ("ADDED", {"ready": True}))
            break

        gears = dynamic.DynamicClient(self.api).resources.get(api_version=f"{group}/v1", kind="Gear")
        gear["spec"] = {"size": 7}
        applied = gears.server_side_apply(body=gear, name="a", namespace=self.namespace, field_manager="py", force_conflicts=True)
        self.assertEqual((applied.spec.size, applied.metadata.generation), (7, 2))
        gears.delete(name="a", namespace=self.namespace)
        self.assertEqual(custom.list_namespaced_custom_object(**where)["items"], [])


if __name__ == "__main__":
    unittest.main()
