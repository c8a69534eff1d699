package why

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
)

const gib = int64(1) << 30

// facts: a Pod with one claim for 10 GiB waits for a node; the only node could take it.
func facts() Facts {
	return Facts{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{
			Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/1 nodes are available"}},
		}},
		Claims: []Claim{{Name: "data", Claim: claim(), Class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver}}},
		Nodes:  []Node{{Name: "n1", Ready: true, AgentReady: true, Registered: true, Largest: map[string]int64{"carve": 20 * gib}}},
	}
}

func claim() *corev1.PersistentVolumeClaim {
	class := "carve"
	return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class,
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}},
	}}
}

func bound(f *Facts, node string) {
	f.Claims[0].Claim.Spec.VolumeName = "pv"
	f.Claims[0].Volume = &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: names.Driver}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}},
	}}
}

func scheduled(f *Facts) {
	bound(f, "n1")
	f.Pod.Spec.NodeName = "n1"
	f.Pod.Status.Conditions = nil
}

func TestExplain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Facts)
		// Parts of the first reason's subject, problem and advice.
		want [3]string
	}{
		"the Pod is being deleted": {func(f *Facts) { f.Pod.DeletionTimestamp = &metav1.Time{} }, [3]string{"pod/p", "being deleted", "end"}},
		"the Pod has ended":        {func(f *Facts) { f.Pod.Status.Phase = corev1.PodFailed }, [3]string{"pod/p", "ended (Failed)", "describe"}},
		"there is no claim":        {func(f *Facts) { f.Claims[0].Claim = nil }, [3]string{"claim/data", "does not exist", "existing-volumes.md"}},
		"there is no claim of an ephemeral volume": {func(f *Facts) {
			f.Claims[0] = Claim{Name: "p-data"}
			f.Pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			f.PodEvents = []Event{{"FailedBinding", "ephemeral volume data: create PVC p-data: forbidden: exceeded quota: small"}}
		}, [3]string{"claim/p-data", "exceeded quota: small", "A claim by hand is not this Pod's"}},
		"the claim is being deleted": {func(f *Facts) { f.Claims[0].Claim.DeletionTimestamp = &metav1.Time{} },
			[3]string{"claim/data", "being deleted", "cannot start"}},
		"there is no class": {func(f *Facts) { f.Claims[0].Class = nil }, [3]string{"claim/data", `StorageClass "carve" does not exist`, "storageclasses"}},
		"it was never bound": {func(f *Facts) {
			c := f.Claims[0].Claim
			c.Annotations, c.Status.Phase = map[string]string{bindCompleted: "yes"}, corev1.ClaimLost
		}, [3]string{"claim/data", "names no volume", "kubectl annotate pvc data pv.kubernetes.io/bind-completed-"}},
		"the volume is gone": {func(f *Facts) { f.Claims[0].Claim.Spec.VolumeName = "pv" }, [3]string{"claim/data", "PersistentVolume pv is gone", "only if its data is not needed"}},
		"the node does not have the volume": {func(f *Facts) {
			bound(f, "n1")
			f.Claims[0].Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: names.ConditionVolumeMissing, Status: corev1.ConditionTrue, Message: "other disks"}}
		}, [3]string{"claim/data", "other disks", "claims.md"}},
		"the volume could not be made": {func(f *Facts) { f.Claims[0].Events = []Event{{"ProvisioningFailed", "LVM says no"}} },
			[3]string{"claim/data", "LVM says no", "capacity"}},
		"the chosen node is gone": {func(f *Facts) { f.Claims[0].Claim.Annotations = map[string]string{selectedNode: "n2"} },
			[3]string{"claim/data", "n2, which does not exist", "delete the Pod"}},
		"the chosen node has no agent": {func(f *Facts) {
			f.Claims[0].Claim.Annotations = map[string]string{selectedNode: "n1"}
			f.Nodes[0].AgentReady = false
		}, [3]string{"claim/data", "agent is not ready", "doctor"}},
		"the volume is being made": {func(f *Facts) { f.Claims[0].Claim.Annotations = map[string]string{selectedNode: "n1"} },
			[3]string{"claim/data", "being made on node n1", "wait"}},
		"the volume's node is gone": {func(f *Facts) { bound(f, "n9") }, [3]string{"claim/data", "n9, which does not exist", "on-node-loss"}},
		"the node of a volume without nodeAffinity is gone": {func(f *Facts) {
			bound(f, "n1")
			f.Claims[0].Volume.Spec.NodeAffinity = nil
			f.Claims[0].Volume.Spec.CSI.VolumeAttributes = map[string]string{names.ContextNode: "n9"}
		}, [3]string{"claim/data", "n9, which does not exist", "on-node-loss"}},
		"the volume's node is not ready":  {func(f *Facts) { bound(f, "n1"); f.Nodes[0].Ready = false }, [3]string{"claim/data", "not ready", "describe node n1"}},
		"the volume's node takes no Pods": {func(f *Facts) { bound(f, "n1"); f.Nodes[0].Unschedulable = true }, [3]string{"claim/data", "takes no Pods", "uncordon n1"}},
		"no node has enough free space": {func(f *Facts) { f.Nodes[0].Largest["carve"] = 9 * gib },
			[3]string{"nodes", "n1: the largest volume of carve is 9Gi, data asks for 10Gi", "free space"}},
		"no node offers the class":                              {func(f *Facts) { f.Nodes[0].Largest = nil }, [3]string{"nodes", "n1: does not offer the StorageClass carve", "capacity"}},
		"no node has an agent":                                  {func(f *Facts) { f.Nodes[0].AgentReady = false }, [3]string{"nodes", "n1: its agent is not ready", "capacity"}},
		"no kubelet knows the driver":                           {func(f *Facts) { f.Nodes[0].Registered = false }, [3]string{"nodes", "does not know the driver", "capacity"}},
		"a node could take the volume, so it is something else": {func(*Facts) {}, [3]string{"scheduler", "0/1 nodes are available", "describe"}},
		"the Pod has no volume of Carve":                        {func(f *Facts) { f.Claims = nil }, [3]string{"scheduler", "0/1 nodes", "no volume of Carve"}},
		"the scheduler has not looked": {func(f *Facts) { f.Pod.Status.Conditions = nil; f.Pod.Spec.SchedulerName = "other" },
			[3]string{"scheduler", "not looked", "called other"}},
		"the Pod's node is gone": {func(f *Facts) { scheduled(f); f.Claims = nil; f.Nodes = nil }, [3]string{"node/n1", "does not exist", "delete the Pod"}},
		"the agent of the Pod's node is not ready": {func(f *Facts) { scheduled(f); f.Nodes[0].AgentReady = false },
			[3]string{"node/n1", "cannot be mounted", "doctor"}},
		"the kubelet of the Pod's node does not know the driver": {func(f *Facts) { scheduled(f); f.Nodes[0].Registered = false },
			[3]string{"node/n1", "does not know the driver", "kubeletDir"}},
		"the kubelet cannot mount": {func(f *Facts) { scheduled(f); f.PodEvents = []Event{{"FailedMount", "bad superblock"}} },
			[3]string{"kubelet", "bad superblock", "on n1"}},
		"a container does not start": {func(f *Facts) {
			scheduled(f)
			f.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		}, [3]string{"container/app", "ImagePullBackOff", "not about volumes"}},
		"nothing is wrong that one could see": {scheduled, [3]string{"pod/p", "not ready yet", "describe"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			test.change(&f)
			got := Explain(f)
			if len(got) == 0 {
				t.Fatalf("want a reason with %q, got none", test.want)
			}
			for i, text := range []string{got[0].Subject, got[0].Problem, got[0].Next} {
				if !strings.Contains(text, test.want[i]) {
					t.Errorf("want %q in %q, got %+v", test.want[i], text, got)
				}
			}
		})
	}
}

func TestNodesAreNamedBesideAnEventOfTheClaim(t *testing.T) {
	f := facts()
	f.Nodes[0].Largest["carve"] = 9 * gib
	f.Claims[0].Events = []Event{{"ProvisioningFailed", "10Gi is not allowed"}}
	got := Explain(f)
	if len(got) < 2 || got[0].Subject != "claim/data" || got[1].Subject != "nodes" {
		t.Errorf("want the claim's reason, then that of the nodes; got %+v", got)
	}
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"being deleted": func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} },
		"lost":          func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" },
	} {
		f := facts()
		f.Nodes[0].Largest["carve"] = 9 * gib
		change(f.Claims[0].Claim)
		if got := Explain(f); slices.ContainsFunc(got, func(r Reason) bool { return r.Subject == "nodes" }) {
			t.Errorf("a claim that is %s waits for no node; got %+v", name, got)
		}
	}
}

func TestAReadyPodHasNoReasons(t *testing.T) {
	f := facts()
	scheduled(&f)
	f.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if got := Explain(f); len(got) != 0 {
		t.Errorf("want none, got %+v", got)
	}
}

func TestClaimsOfOtherDriversAreLeftToThem(t *testing.T) {
	f := facts()
	f.Claims[0].Class.Provisioner = "other"
	f.Nodes[0].Largest = nil
	got := Explain(f)
	if len(got) != 1 || got[0].Subject != "scheduler" {
		t.Errorf("want what the scheduler says and no more, got %+v", got)
	}
}

func TestManyNodesAreCounted(t *testing.T) {
	f := facts()
	f.Nodes[0].Ready = false
	for range 7 {
		f.Nodes = append(f.Nodes, f.Nodes[0])
	}
	if got := Explain(f); !strings.HasSuffix(got[0].Problem, "and 3 more nodes") {
		t.Errorf("want five of eight nodes and a count of the rest, got %q", got[0].Problem)
	}
}
