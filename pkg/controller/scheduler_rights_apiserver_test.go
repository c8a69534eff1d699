//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// An older API server knows fewer resources.
func TestSchedulerHasUpstreamsRights(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	apply(t, client, schedulerComponent+"rbac.yaml")
	rights := func(roles ...string) map[string]bool {
		all := map[string]bool{}
		for _, name := range roles {
			for _, rule := range must.Get(client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{}))(t).Rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							all[strings.Join([]string{group, resource, verb}, " ")] = true
						}
					}
				}
			}
		}
		return all
	}
	own, upstream := rights(schedulerAccount), rights("system:kube-scheduler", "system:volume-scheduler")
	maps.DeleteFunc(upstream, func(right string, _ bool) bool {
		group, resource, _ := strings.Cut(right, " ")
		// Its Lease is in a Role. The scheduler calls pods/binding, and ReplicaSets left the
		// group extensions.
		return group == "coordination.k8s.io" || group == "extensions" || strings.HasPrefix(right, " bindings ") ||
			strings.HasPrefix(resource, "podgroups")
	})
	for right := range upstream {
		if !own[right] {
			t.Errorf("right %q: upstream's scheduler has it, ours lacks it", right)
		}
	}
	newest := must.Get(version.ParseGeneric(must.Get(client.Discovery().ServerVersion())(t).GitVersion))(t).AtLeast(version.MajorMinor(1, 37))
	for right := range own {
		if newest && !upstream[right] {
			t.Errorf("right %q: our scheduler has it, upstream's lacks it", right)
		}
	}
}

func TestOurSchedulerMayWriteOnlyWhatItHasTo(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	apply(t, client, schedulerComponent+"rbac.yaml")
	apply(t, client, schedulerComponent+"policy.yaml")
	limited := asAccount(t, schedulerAccount)
	w := &world{client: client, namespace: ours}
	for _, name := range []string{"bound-well", "bound-badly", "victim", "probe"} {
		w.runPod(t, "no-such-scheduler", name, "")
	}
	must.Get(client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), claimOf("wanted", nil), metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.CoreV1().PersistentVolumeClaims(ours).Delete(context.Background(), "wanted", metav1.DeleteOptions{})
	})
	taken := volumeOf("taken", otherDriver, "")
	taken.Spec.ClaimRef = &v1.ObjectReference{Namespace: ours, Name: "another", UID: "uid"}
	unclaimed := volumeOf("unclaimed", otherDriver, "")
	unclaimed.Spec.StorageClassName = "unrelated" // the PV controller must not bind it
	for _, pv := range []*v1.PersistentVolume{unclaimed, taken} {
		must.Get(client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{})
		})
	}
	bind := func(pod string, change func(*v1.Binding)) error {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: pod}, Target: v1.ObjectReference{Kind: "Node", Name: "n1"}}
		if change != nil {
			change(binding)
		}
		return limited.CoreV1().Pods(binding.Namespace).Bind(t.Context(), binding, metav1.CreateOptions{})
	}
	// Controllers write these objects, too.
	untilWritten := func(update func() error) error {
		for {
			if err := update(); !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	updateVolume := func(name string, change func(*v1.PersistentVolume)) error {
		return untilWritten(func() error {
			pv := must.Get(client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}))(t)
			change(pv)
			_, err := limited.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
			return err
		})
	}
	updateStatus := func(name string, change func(*v1.Pod)) error {
		return untilWritten(func() error {
			pod := must.Get(client.CoreV1().Pods(ours).Get(t.Context(), name, metav1.GetOptions{}))(t)
			change(pod)
			_, err := limited.CoreV1().Pods(ours).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
			return err
		})
	}
	updatePhase := func(name string, phase v1.PodPhase) error {
		return updateStatus(name, func(pod *v1.Pod) { pod.Status.Phase = phase })
	}
	condition := func(kind v1.PodConditionType) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionFalse, Reason: "Probe"})
		}
	}
	give := func(claim string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: ours, Name: claim, UID: "uid-wanted"}
		}
	}
	resized := func(pv *v1.PersistentVolume) {
		give("wanted")(pv)
		pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("2Gi")
	}
	isDenied := func(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }
	resourceClaim := func(name string, annotations map[string]string) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c"}}}}}}
	}
	createResourceClaim := func(annotations map[string]string) error {
		_, err := limited.ResourceV1().ResourceClaims(ours).Create(t.Context(), resourceClaim("of-the-scheduler", annotations), metav1.CreateOptions{})
		return err
	}
	patchResourceClaim := func(patch string) error {
		_, err := limited.ResourceV1().ResourceClaims(ours).Patch(t.Context(), "of-a-user", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	deleteResourceClaim := func(name string) error {
		return limited.ResourceV1().ResourceClaims(ours).Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	withResourceClaims := servesSince(t, client, 34, resourcev1.SchemeGroupVersion, "resourceclaims")
	if withResourceClaims {
		must.Get(client.ResourceV1().ResourceClaims(ours).Create(t.Context(), resourceClaim("of-a-user", nil), metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = patchResourceClaim(`{"metadata":{"finalizers":null}}`)
			_ = client.ResourceV1().ResourceClaims(ours).Delete(context.Background(), "of-a-user", metav1.DeleteOptions{})
		})
	}
	annotated := func(b *v1.Binding) { b.Annotations = map[string]string{"a": "b"} }
	tries := 0 // of harmless allowed requests until a policy is in force
	policies := map[string]func() error{
		"bindings": func() error { return bind("none", annotated) },
		"Pods":     func() error { return updatePhase("probe", []v1.PodPhase{v1.PodRunning, v1.PodFailed}[tries%2]) },
		"claims": func() error {
			return patchClaimAs(limited, "wanted", fmt.Sprintf(`{"metadata":{"annotations":{"tries":"%d"}}}`, tries))
		},
		"volumes": func() error {
			return updateVolume("unclaimed", func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"tries": strconv.Itoa(tries)} })
		},
	}
	if withResourceClaims {
		policies["ResourceClaims"] = func() error { return patchResourceClaim(fmt.Sprintf(`{"metadata":{"labels":{"tries":"%d"}}}`, tries)) }
	}
	for what, try := range policies {
		waittest.Until(t, "the policy for "+what+" is in force", func() bool { tries++; return isDenied(try()) })
	}
	if withResourceClaims {
		for what, err := range map[string]error{
			"create ResourceClaims":   createResourceClaim(nil),
			"annotate ResourceClaims": patchResourceClaim(`{"metadata":{"annotations":{"probe":"x"}}}`),
			"delete ResourceClaims":   deleteResourceClaim("of-a-user"),
		} {
			if !isDenied(err) {
				t.Errorf("the scheduler may %s: %v", what, err)
			}
		}
		for _, err := range []error{
			createResourceClaim(map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}),
			deleteResourceClaim("of-the-scheduler"),
			patchResourceClaim(`{"metadata":{"finalizers":["resource.kubernetes.io/delete-protection"]}}`),
		} {
			if err != nil {
				t.Errorf("the scheduler may not allocate devices: %v", err)
			}
		}
	}
	for what, err := range map[string]error{
		"annotate Pods by a binding": bind("bound-badly", annotated),
		"label Pods by a binding":    bind("bound-badly", func(b *v1.Binding) { b.Labels = map[string]string{"a": "b"} }),
		"bind Pods in kube-system":   bind("none", func(b *v1.Binding) { b.Namespace = "kube-system" }),
		"annotate claims":            patchClaimAs(limited, "wanted", `{"metadata":{"annotations":{"probe":"x"}}}`),
		"label claims":               patchClaimAs(limited, "wanted", `{"metadata":{"labels":{"probe":"x"}}}`),
		"take volumes from claims":   updateVolume("taken", give("wanted")),
		"resize volumes":             updateVolume("unclaimed", resized),
		"mount volumes otherwise": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.Spec.MountOptions = []string{"suid"}
		}),
		"name a Secret in volumes": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.Spec.CSI.ControllerExpandSecretRef = &v1.SecretReference{Namespace: "kube-system", Name: "topsecret"}
		}),
		"let more Pods write to volumes": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.Spec.AccessModes = append(pv.Spec.AccessModes, v1.ReadWriteMany)
		}),
		"annotate volumes": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.Annotations = map[string]string{"probe": "x"}
		}),
		"have volumes deleted with others": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: ours, UID: "uid"}}
		}),
		"end Pods by their status": updatePhase("victim", v1.PodFailed),
		"give Pods addresses": updateStatus("victim", func(pod *v1.Pod) {
			pod.Status.PodIP, pod.Status.PodIPs = "10.0.0.1", []v1.PodIP{{IP: "10.0.0.1"}}
		}),
		"say that Pods are ready":       updateStatus("victim", condition(v1.PodReady)),
		"annotate Pods by their status": updateStatus("victim", func(pod *v1.Pod) { pod.Annotations = map[string]string{"probe": "x"} }),
	} {
		if !isDenied(err) {
			t.Errorf("the scheduler may %s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"bind a Pod":                 bind("bound-well", nil),
		"select a node for a claim":  patchClaimAs(limited, "wanted", `{"metadata":{"annotations":{"`+volume.AnnSelectedNode+`":"n1"}}}`),
		"select another node for it": patchClaimAs(limited, "wanted", `{"metadata":{"annotations":{"`+volume.AnnSelectedNode+`":"n2"}}}`),
		"give a volume to a claim": updateVolume("unclaimed", func(pv *v1.PersistentVolume) {
			give("wanted")(pv)
			pv.Annotations = map[string]string{volume.AnnBoundByController: "yes"}
		}),
		"say that a Pod is not scheduled": updateStatus("victim", condition(v1.PodScheduled)),
		"say why a Pod is preempted":      updateStatus("victim", condition(v1.DisruptionTarget)),
		"nominate a node for a Pod":       updateStatus("victim", func(pod *v1.Pod) { pod.Status.NominatedNodeName = "n1" }),
		"preempt a Pod":                   limited.CoreV1().Pods(ours).Delete(t.Context(), "victim", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Errorf("the scheduler may not %s: %v", what, err)
		}
	}
}

func TestNamespacesOptInToOurScheduler(t *testing.T) {
	client := connectToAPIServer(t)
	if !servesSince(t, client, 36, admissionv1.SchemeGroupVersion, "mutatingadmissionpolicies") {
		t.Skip("MutatingAdmissionPolicy is in Kubernetes 1.36 and later")
	}
	apply(t, client, schedulerComponent+"namespaces.yaml")
	for name, labels := range map[string]map[string]string{"opted-in": {"carve.csi.local/scheduler": "carve"}, "others": nil} {
		must.Get(client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { _ = client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	schedulerOf := func(namespace string, change func(*v1.PodSpec)) string {
		spec, _ := scheduledPod(true)
		if change != nil {
			change(&spec)
		}
		var pod *v1.Pod
		waittest.Succeeds(t, "the Pod is taken", func() (err error) {
			pod, err = client.CoreV1().Pods(namespace).Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: spec}, metav1.CreateOptions{})
			return err
		})
		_ = client.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{})
		return pod.Spec.SchedulerName
	}
	waittest.Until(t, "the policy is in force", func() bool { return schedulerOf("opted-in", nil) == carveScheduler })
	for what, test := range map[string]struct {
		namespace string
		change    func(*v1.PodSpec)
		want      string
	}{
		"another namespace":                {"others", nil, v1.DefaultSchedulerName},
		"a Pod that names its scheduler":   {"opted-in", func(s *v1.PodSpec) { s.SchedulerName = "special" }, "special"},
		"a Pod that names its node":        {"opted-in", func(s *v1.PodSpec) { s.NodeName = "n1" }, v1.DefaultSchedulerName},
		"a Pod without claims":             {"opted-in", func(s *v1.PodSpec) { s.Volumes = nil }, v1.DefaultSchedulerName},
		"a Pod with a claim that is there": {"opted-in", func(s *v1.PodSpec) { s.Volumes = []v1.Volume{byName("c")} }, carveScheduler},
	} {
		if got := schedulerOf(test.namespace, test.change); got != test.want {
			t.Errorf("%s: the scheduler is %q, want %q", what, got, test.want)
		}
	}
}
