package controller

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// ofWeb makes a claim one of Pod web's, of a size.
func ofWeb(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		yes := true
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "uid-web", Controller: &yes}}
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	}
}

func TestClaimsOfAPodThatDoNotFitTogetherAreHandedBackBeforeOneIsMade(t *testing.T) {
	h := newHarness(t)
	n1, n2 := h.node("n1", gib), h.node("n2", 2*gib)
	h.class("carve", nil)
	h.run()
	h.claim("web-a", "", ofWeb("600Mi"))
	h.claim("web-b", "", ofWeb("600Mi"))
	h.claim("web-bound-elsewhere", "", func(c *v1.PersistentVolumeClaim) {
		ofWeb("900Mi")(c)
		other := "other"
		c.Spec.StorageClassName = &other
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
}

func TestClaimsOfAPodThatMayFitTogetherAreMade(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
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
