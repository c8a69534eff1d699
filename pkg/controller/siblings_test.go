package controller

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// ofWeb makes a claim one of Pod web's, of a size.
func ofWeb(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		yes := true
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "uid-web", Controller: &yes}}
		ofSize(size)(c)
	}
}

func ofSize(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	}
}

// inTemplate and byName are volumes of a Pod: one whose claim comes with the Pod,
// and one whose claim somebody made.
func inTemplate(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{}}}}
}

func byName(claim string) v1.Volume {
	return v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

// unscheduled adds a Pod without a node.
func (h *harness) unscheduled(name string, volumes ...v1.Volume) {
	h.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{Volumes: volumes}}
	if _, err := h.client.CoreV1().Pods("default").Create(h.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.eventually("the controller sees the Pod", func() bool { return len(h.c.core.pods.GetStore().ListKeys()) > 0 })
}

func TestClaimsOfAPodThatDoNotFitTogetherAreHandedBackBeforeOneIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		volumes []v1.Volume
		claim   func(size string) func(*v1.PersistentVolumeClaim)
	}{
		"claims that come with the Pod": {[]v1.Volume{inTemplate("a"), inTemplate("b"), inTemplate("bound-elsewhere")}, ofWeb},
		"claims that somebody made":     {[]v1.Volume{byName("web-a"), byName("web-b"), byName("web-bound-elsewhere")}, ofSize},
		"one of each":                   {[]v1.Volume{byName("web-a"), inTemplate("b")}, ofWeb},
		"a claim that is named twice":   {[]v1.Volume{byName("web-a"), byName("web-a"), byName("web-b")}, ofSize},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			n1, n2 := h.node("n1", gib), h.node("n2", 2*gib)
			h.class("carve", nil)
			h.run()
			h.unscheduled("web", c.volumes...)
			h.claim("web-a", "", c.claim("600Mi"))
			h.claim("web-b", "", c.claim("600Mi"))
			h.claim("web-bound-elsewhere", "", func(claim *v1.PersistentVolumeClaim) {
				c.claim("900Mi")(claim)
				other := "other"
				claim.Spec.StorageClassName = &other
			})
			h.eventually("the controller sees the claims", func() bool { return h.c.core.claim("uid-web-a") != nil && h.c.core.claim("uid-web-b") != nil })
			for _, name := range []string{"web-a", "web-b"} {
				h.selectNode(name, "n1")
			}
			for _, name := range []string{"web-a", "web-b"} {
				h.eventually(name+" is handed back", func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" })
			}
			h.event("Warning ProvisioningFailed", "web-a, web-b", "1200Mi together", "node n1", "1Gi free", "another node")
			h.eventually("the node seems too small for either", h.capacityIs("n1", 424*mib))
			for _, name := range []string{"web-a", "web-b"} {
				h.selectNode(name, "n2")
			}
			h.eventually("both are bound", func() bool { return h.bound("web-a")() && h.bound("web-b")() })
			if n1.Creates() != 0 || len(n2.Volumes()) != 2 {
				t.Errorf("%d volumes were made on n1, and there are %d on n2", n1.Creates(), len(n2.Volumes()))
			}
		})
	}
}

func TestClaimsOfAPodThatMayFitTogetherAreMade(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("web", inTemplate("first"), inTemplate("a"), inTemplate("b"))
	// One that is bound holds the Pod to the node: the others can be nowhere else.
	h.claim("web-first", "n1", ofWeb("100Mi"))
	h.eventually("the first is bound", h.bound("web-first"))
	h.claim("web-a", "", ofWeb("500Mi"))
	h.claim("web-b", "", ofWeb("500Mi"))
	h.eventually("the controller sees the claims", func() bool { return h.c.core.claim("uid-web-a") != nil && h.c.core.claim("uid-web-b") != nil })
	h.selectNode("web-a", "n1")
	h.eventually("the next is bound", h.bound("web-a"))
	h.selectNode("web-b", "n1")
	h.eventually("the last one is handed back by its node", func() bool { return h.getClaim("web-b").Annotations[volume.AnnSelectedNode] == "" })
	if n := n1.Creates(); n != 2 {
		t.Errorf("%d volumes were made", n)
	}
}

func TestClaimsOfSeveralPodsAreNotAddedUp(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("one", byName("a"))
	h.unscheduled("other", byName("b"))
	h.eventually("the controller sees both", func() bool { return len(h.c.core.pods.GetStore().ListKeys()) == 2 })
	h.claim("a", "", ofSize("600Mi"))
	h.claim("b", "", ofSize("600Mi"))
	h.eventually("the controller sees the claims", func() bool { return h.c.core.claim("uid-a") != nil && h.c.core.claim("uid-b") != nil })
	h.selectNode("a", "n1")
	h.eventually("the first is bound", h.bound("a"))
}

func TestOfAPodOnlyItsClaimsAreKept(t *testing.T) {
	full := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c"}}, Volumes: []v1.Volume{
			{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, inTemplate("scratch"), byName("data"),
		}},
	}
	got, err := claimsOnly(full)
	lean, ok := got.(*v1.Pod)
	if err != nil || !ok {
		t.Fatalf("%v, error %v", got, err)
	}
	if lean.Labels != nil || lean.Spec.Containers != nil || len(lean.Spec.Volumes) != 2 || lean.Spec.NodeName != "n1" || lean.ResourceVersion != "7" {
		t.Errorf("kept %+v", lean)
	}
	want := []string{"ns/data", "ns/web-scratch"}
	for what, pod := range map[string]*v1.Pod{"the whole Pod": full, "what is kept": lean} {
		if keys, err := claimIndexer(pod); err != nil || !reflect.DeepEqual(keys, want) {
			t.Errorf("%s: claims %q, error %v, want %q", what, keys, err, want)
		}
	}
}
