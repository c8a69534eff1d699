package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

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

// inTemplate is a volume whose claim comes with the Pod, byName one whose claim was made by
// hand.
func inTemplate(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{}}}}
}

func byName(claim string) v1.Volume {
	return v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func (h *harness) unscheduled(name string, volumes ...v1.Volume) {
	h.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{Volumes: volumes}}
	must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), pod, metav1.CreateOptions{}))(h.t)
	waittest.Until(h.t, "the controller sees the Pod", func() bool { return len(h.c.core.Pods.GetStore().ListKeys()) > 0 })
}

func TestClaimsThatDoNotFitTogetherAreRescheduledAfterARestart(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-web"}, Spec: v1.PodSpec{Volumes: []v1.Volume{byName("a"), byName("b")}}}
	must.Get(h.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	h.claim("a", "n1", ofSize("600Mi"))
	h.claim("b", "n1", ofSize("600Mi"))
	h.run()
	waittest.Until(h.t, "both are rescheduled", func() bool { return h.rescheduled("a") && h.rescheduled("b") })
	if n1.Creates() != 0 {
		t.Errorf("%d volumes were made", n1.Creates())
	}
}

// The watch of claims may bring the scheduler's choice before the watch of Pods brings the
// Pod.
func TestAClaimWaitsForItsPodToBeSeen(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.podLag = time.Hour })
	n1, n2 := h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("a", "n1", ofSize("600Mi"))
	h.claim("b", "n1", ofSize("600Mi"))
	// A later claim that needs no Pod is served: the others had that much time.
	h.class("at-once", immediate)
	h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
		class := "at-once"
		c.Spec.StorageClassName, c.Annotations[volume.AnnStorageProvisioner] = &class, names.Driver
	})
	waittest.Until(t, "the last claim is bound", h.bound("c"))
	if n := n1.Creates() + n2.Creates(); n != 1 {
		t.Errorf("%d volumes were made, want that of the last claim alone", n)
	}
	h.unscheduled("web", byName("a"), byName("b"))
	waittest.Until(t, "both are rescheduled", func() bool { return h.rescheduled("a") && h.rescheduled("b") })
	if n := n1.Creates() + n2.Creates(); n != 1 {
		t.Errorf("%d volumes were made, want that of the last claim alone", n)
	}
}

func TestClaimsOfAPodThatDoNotFitTogetherAreRescheduledBeforeOneIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		volumes []v1.Volume
		claim   func(size string) func(*v1.PersistentVolumeClaim)
	}{
		"claims that come with the Pod": {[]v1.Volume{inTemplate("a"), inTemplate("b"), inTemplate("bound-elsewhere")}, ofWeb},
		"claims made by hand":           {[]v1.Volume{byName("web-a"), byName("web-b"), byName("web-bound-elsewhere")}, ofSize},
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
			waittest.Until(h.t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-web-a") != nil && h.c.core.Claim("uid-web-b") != nil })
			for _, name := range []string{"web-a", "web-b"} {
				h.selectNode(name, "n1")
			}
			for _, name := range []string{"web-a", "web-b"} {
				waittest.Until(h.t, name+" is rescheduled", func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" })
			}
			h.event("Warning ProvisioningFailed", "web-a, web-b", "node n1 together", `"local" has 424Mi left`, "takes 600Mi", "another node")
			waittest.Until(h.t, "the node seems too small for either", h.capacityIs("n1", 424*mib))
			for _, name := range []string{"web-a", "web-b"} {
				h.selectNode(name, "n2")
			}
			waittest.Until(h.t, "both are bound", func() bool { return h.bound("web-a")() && h.bound("web-b")() })
			if n1.Creates() != 0 || len(n2.Volumes()) != 2 {
				t.Errorf("%d volumes were made on n1, and there are %d on n2", n1.Creates(), len(n2.Volumes()))
			}
		})
	}
}

// mirrors makes a node of one volume group with two device classes: "local", and "mirrored",
// whose volumes take twice their size and two units.
func (h *harness) mirrors(name string, bytes int64) *lvmdfake.Server {
	h.t.Helper()
	h.node(name, 0)
	s := lvmdfake.New(name, lvmdfake.Class{Name: "local", Default: true, Group: "both", Bytes: bytes},
		lvmdfake.Class{Name: "mirrored", Group: "both", Bytes: bytes, Mirrored: true})
	h.attach(s, name)
	return s
}

func (h *harness) published(node, class string) *resource.Quantity {
	c, err := h.client.StorageV1().CSIStorageCapacities("carve-system").Get(h.t.Context(), capacity.Key{Node: node, Class: class}.ObjectName(), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return c.MaximumVolumeSize
}

func TestClaimsOfAPodAreChargedWhatTheyTakeOfTheirGroup(t *testing.T) {
	type wanted struct{ class, size string }
	for name, c := range map[string]struct {
		claims []wanted
		others int64 // reserved by other claims
		short  []string
	}{
		"two classes of one group that are too large together":  {[]wanted{{"carve", "600Mi"}, {"mirrored", "300Mi"}}, 0, []string{"web-0, web-1", `"mirrored" has 196Mi left`, "takes 300Mi"}},
		"two classes of one group that fill it":                 {[]wanted{{"carve", "392Mi"}, {"mirrored", "300Mi"}}, 0, nil},
		"two mirrored ones, with their bookkeeping":             {[]wanted{{"mirrored", "248Mi"}, {"mirrored", "248Mi"}}, 0, []string{`"mirrored" has 244Mi left`, "takes 248Mi"}},
		"two mirrored ones that fill the group":                 {[]wanted{{"mirrored", "248Mi"}, {"mirrored", "244Mi"}}, 0, nil},
		"three mirrored ones, of which any two fit":             {[]wanted{{"mirrored", "164Mi"}, {"mirrored", "164Mi"}, {"mirrored", "164Mi"}}, 0, []string{"web-0, web-1, web-2", `"mirrored" has 160Mi left`}},
		"sizes that are too large once they are rounded up":     {[]wanted{{"carve", "501Mi"}, {"carve", "497Mi"}}, 0, []string{`"local" has 500Mi left`, "takes 504Mi"}},
		"sizes that fill the group once they are rounded up":    {[]wanted{{"carve", "499Mi"}, {"carve", "497Mi"}}, 0, nil},
		"encrypted ones that are too large with their headers":  {[]wanted{{"sealed", "488Mi"}, {"sealed", "488Mi"}}, 0, []string{`"local" has 496Mi left`, "takes 504Mi"}},
		"encrypted ones that fill the group with their headers": {[]wanted{{"sealed", "484Mi"}, {"sealed", "484Mi"}}, 0, nil},
		"one that is too large by itself":                       {[]wanted{{"carve", "100Mi"}, {"mirrored", "500Mi"}}, 0, []string{`"mirrored" has 444Mi left`, "takes 500Mi"}},
		"what others wait for is not counted":                   {[]wanted{{"mirrored", "248Mi"}, {"mirrored", "244Mi"}}, 900 * mib, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			small, large := h.mirrors("small", 1000*mib), h.mirrors("large", 4*gib)
			h.class("carve", nil)
			h.class("sealed", withKey("key", "vault"))
			h.class("mirrored", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "mirrored"} })
			h.run()
			h.leader()
			if c.others > 0 {
				h.c.core.ledger.Reserve(scheduler.Reservation{Claim: "other", Volume: "pvc-other", Node: "small", Bytes: c.others, Deadline: time.Now().Add(time.Hour)})
			}
			var claims []string
			var volumes []v1.Volume
			for i := range c.claims {
				claims = append(claims, fmt.Sprint("web-", i))
				volumes = append(volumes, byName(claims[i]))
			}
			h.unscheduled("web", volumes...)
			for i, name := range claims {
				h.claim(name, "", func(claim *v1.PersistentVolumeClaim) {
					claim.Spec.StorageClassName = &c.claims[i].class
					ofSize(c.claims[i].size)(claim)
				})
			}
			waittest.Until(h.t, "the controller sees the claims", func() bool {
				return !slices.ContainsFunc(claims, func(name string) bool { return h.c.core.Claim("uid-"+name) == nil })
			})
			made := func() bool { return !slices.ContainsFunc(claims, func(name string) bool { return !h.bound(name)() }) }
			for _, name := range claims {
				h.selectNode(name, "small")
			}
			if c.short == nil {
				waittest.Until(h.t, "all are bound", made)
				if n := small.Creates(); n != len(claims) {
					t.Errorf("%d volumes were made, want %d", n, len(claims))
				}
				return
			}
			for _, name := range claims {
				waittest.Until(h.t, name+" is rescheduled", func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" })
			}
			h.event(append(c.short, "Warning ProvisioningFailed", "node small together", "another node")...)
			waittest.Until(h.t, "the node seems too small for one of them", func() bool {
				return slices.ContainsFunc(c.claims, func(w wanted) bool {
					largest := h.published("small", w.class)
					return largest != nil && largest.Cmp(resource.MustParse(w.size)) < 0
				})
			})
			for _, name := range claims {
				h.selectNode(name, "large")
			}
			waittest.Until(h.t, "all are bound", made)
			if small.Creates() != 0 || len(large.Volumes()) != len(claims) {
				t.Errorf("%d volumes were made on the small node, and there are %d on the large one, want 0 and %d", small.Creates(), len(large.Volumes()), len(claims))
			}
		})
	}
}

func TestEveryNodeThatIsTooSmallForAPodSeemsSoAtTheSameTime(t *testing.T) {
	h := newHarness(t)
	h.mirrors("n1", gib)
	h.mirrors("n2", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("web", byName("web-a"), byName("web-b"))
	h.claim("web-a", "", ofSize("600Mi"))
	h.claim("web-b", "", ofSize("600Mi"))
	waittest.Until(h.t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-web-a") != nil && h.c.core.Claim("uid-web-b") != nil })
	for _, node := range []string{"n1", "n2"} {
		for _, name := range []string{"web-a", "web-b"} {
			h.selectNode(name, node)
			waittest.Until(h.t, name+" is rescheduled", func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" })
		}
	}
	for _, node := range []string{"n1", "n2"} {
		waittest.Until(h.t, node+" seems too small", h.capacityIs(node, 424*mib))
	}
}

func TestClaimsOfAPodThatMayFitTogetherAreMade(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("web", inTemplate("first"), inTemplate("a"), inTemplate("b"))
	// A bound claim pins the Pod: the others must follow.
	h.claim("web-first", "n1", ofWeb("100Mi"))
	waittest.Until(h.t, "the first is bound", h.bound("web-first"))
	h.claim("web-a", "", ofWeb("500Mi"))
	h.claim("web-b", "", ofWeb("500Mi"))
	waittest.Until(h.t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-web-a") != nil && h.c.core.Claim("uid-web-b") != nil })
	h.selectNode("web-a", "n1")
	waittest.Until(h.t, "the next is bound", h.bound("web-a"))
	h.selectNode("web-b", "n1")
	waittest.Until(h.t, "the last one is rescheduled by its node", func() bool { return h.getClaim("web-b").Annotations[volume.AnnSelectedNode] == "" })
	if n := n1.Creates(); n != 2 {
		t.Errorf("%d volumes were made", n)
	}
}

// The claim of the Pod's own volume would have the name of a claim that another Pod uses.
func TestAPodThatCannotHaveAClaimDoesNotHoldItUp(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("user", byName("web-a"))
	h.unscheduled("web", inTemplate("a"), inTemplate("b"))
	waittest.Until(h.t, "the controller sees both", func() bool { return len(h.c.core.Pods.GetStore().ListKeys()) == 2 })
	h.claim("web-a", "", ofSize("600Mi"))
	h.claim("web-b", "", ofWeb("600Mi"))
	waittest.Until(h.t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-web-a") != nil && h.c.core.Claim("uid-web-b") != nil })
	h.selectNode("web-a", "n1")
	waittest.Until(h.t, "the claim is bound", h.bound("web-a"))
}

func TestClaimsOfSeveralPodsAreNotAddedUp(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.unscheduled("one", byName("a"))
	h.unscheduled("other", byName("b"))
	waittest.Until(h.t, "the controller sees both", func() bool { return len(h.c.core.Pods.GetStore().ListKeys()) == 2 })
	h.claim("a", "", ofSize("600Mi"))
	h.claim("b", "", ofSize("600Mi"))
	waittest.Until(h.t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-a") != nil && h.c.core.Claim("uid-b") != nil })
	h.selectNode("a", "n1")
	waittest.Until(h.t, "the first is bound", h.bound("a"))
}

// The first writes of the lower capacity fail.
func TestTheSchedulerCanSeeThatANodeIsTooSmallBeforeItChoosesAgain(t *testing.T) {
	h := newHarness(t)
	h.mirrors("n1", gib)
	h.class("carve", nil)
	var armed atomic.Bool
	var failed, early atomic.Int32
	h.react("update", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		if armed.Load() && failed.Add(1) <= 3 {
			return true, nil, apierrors.NewServiceUnavailable("busy")
		}
		return false, nil, nil
	})
	h.react("patch", "persistentvolumeclaims", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(k8stesting.PatchAction); ok && strings.Contains(string(patch.GetPatch()), "selected-node") && failed.Load() <= 3 {
			early.Add(1)
		}
		return false, nil, nil
	})
	h.run()
	h.leader()
	h.unscheduled("web", byName("web-a"), byName("web-b"))
	h.claim("web-a", "", ofSize("600Mi"))
	h.claim("web-b", "", ofSize("600Mi"))
	waittest.Until(t, "the controller sees the claims", func() bool { return h.c.core.Claim("uid-web-a") != nil && h.c.core.Claim("uid-web-b") != nil })
	armed.Store(true)
	for _, name := range []string{"web-a", "web-b"} {
		h.selectNode(name, "n1")
	}
	for _, name := range []string{"web-a", "web-b"} {
		waittest.Until(t, name+" is rescheduled", func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" })
	}
	if n := early.Load(); n > 0 || failed.Load() <= 3 {
		t.Errorf("%d claims were rescheduled before the lower capacity was published (%d writes), want none", n, failed.Load())
	}
}
