package client

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func as(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	config := rest.AnonymousClientConfig(connect(t))
	config.BearerToken, config.BearerTokenFile = token, ""
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

func TestServiceAccountTokensOpenWhatTheirRolesAllow(t *testing.T) {
	admin, ctx, ns := typed(t), t.Context(), namespace(t)
	account, err := admin.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	must(t, err)
	spec := idleSpec()
	spec.ServiceAccountName = "robot"
	pod, err := admin.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
	request := func(bound *authenticationv1.BoundObjectReference) string {
		answer, err := admin.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "robot", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr(int64(3600)), BoundObjectRef: bound}}, metav1.CreateOptions{})
		must(t, err)
		check(t, answer.Status.Token != "" && answer.Status.ExpirationTimestamp.After(account.CreationTimestamp.Time), "%+v", answer)
		return answer.Status.Token
	}
	token := request(nil)
	robot := as(t, token)
	_, err = robot.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	check(t, apierrors.IsForbidden(err), "without a role: %v", err)
	me, err := robot.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(t, err)
	user := "system:serviceaccount:" + ns + ":robot"
	check(t, me.Status.UserInfo.Username == user && me.Status.UserInfo.UID == string(account.UID), "%+v", me.Status)

	_, err = admin.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "robot", Namespace: ns}}}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the role to count", func(ctx context.Context) bool {
		_, err := robot.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		return err == nil
	})
	_, err = robot.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
	check(t, apierrors.IsForbidden(err), "secrets: %v", err)

	review, err := admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	must(t, err)
	check(t, review.Status.Authenticated && review.Status.User.Username == user, "%+v", review.Status)
	review, err = admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token + "x"}}, metav1.CreateOptions{})
	must(t, err)
	check(t, !review.Status.Authenticated, "a forged token: %+v", review.Status)
	_, err = as(t, token+"x").CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	check(t, apierrors.IsUnauthorized(err), "a forged token: %v", err)

	bound := as(t, request(&authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p", UID: pod.UID}))
	_, err = bound.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	must(t, err)
	must(t, admin.CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	eventually(t, "the token of a deleted pod to be worth nothing", func(ctx context.Context) bool {
		_, err := bound.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		return apierrors.IsUnauthorized(err)
	})
}

func TestAccessReviewsAnswerForAnyone(t *testing.T) {
	client, ctx, ns := typed(t), t.Context(), namespace(t)
	_, err := client.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "jane"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}}}, metav1.CreateOptions{})
	must(t, err)
	may := func(verb, group, resource string) bool {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "jane", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: verb, Group: group, Resource: resource}}}, metav1.CreateOptions{})
		must(t, err)
		return answer.Status.Allowed
	}
	eventually(t, "jane to see jobs", func(context.Context) bool { return may("list", "batch", "jobs") })
	check(t, !may("delete", "batch", "jobs") && !may("get", "", "secrets"), "jane may too much")
	local, err := client.AuthorizationV1().LocalSubjectAccessReviews(ns).Create(ctx, &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: ns},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: "get", Resource: "pods"}}}, metav1.CreateOptions{})
	must(t, err)
	check(t, local.Status.Allowed, "%+v", local.Status)
	self, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}}}, metav1.CreateOptions{})
	must(t, err)
	check(t, self.Status.Allowed, "%+v", self.Status)

	config := connect(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	jane, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = jane.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
	must(t, err)
	_, err = jane.BatchV1().Jobs("default").List(ctx, metav1.ListOptions{})
	check(t, apierrors.IsForbidden(err), "another namespace: %v", err)
	rules, err := jane.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	must(t, err)
	check(t, len(rules.Status.ResourceRules) > 3 && !rules.Status.Incomplete, "%+v", rules.Status)

	nobody := as(t, "")
	_, err = nobody.Discovery().ServerVersion()
	must(t, err)
	_, err = nobody.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
	check(t, apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err), "without a name: %v", err)
}
