package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func encrypted(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{names.ParamEncryption: names.EncryptionEphemeral, names.ParamEncryptionDiscards: "true"}
}

func ofPod(c *v1.PersistentVolumeClaim) {
	controller := true
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "uid-pod", Controller: &controller}}
}

func TestAStorageClassHasVolumesEncrypted(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", encrypted)
	h.run()
	h.boundVolume("c", "n1")
	if v := node.Volumes()["pvc-uid-c"]; v.GetEncryption() != names.EncryptionEphemeral {
		t.Errorf("volume %v", v)
	}
	claim := h.getClaim("c")
	r, err := spec.ParseClaim(claim, mustClass(t, h))
	if got := r.CreateVolume(claim, "cluster"); err != nil || !got.GetEncryptionDiscards() || got.GetEncryption() != names.EncryptionEphemeral {
		t.Errorf("request %v, error %v", got, err)
	}
}

func TestMistakesAboutEncryptionSayWhatIsAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		parameters map[string]string
		source     bool
		want       []string
	}{
		"an unknown kind": {map[string]string{names.ParamEncryption: "rot13"}, false,
			[]string{"parameters[carve.csi.local/encryption]", `"rot13"`, "allowed: ephemeral"}},
		"an unclear word about discards": {map[string]string{names.ParamEncryption: "ephemeral", names.ParamEncryptionDiscards: "maybe"}, false,
			[]string{"parameters[carve.csi.local/encryption-discards]", `"maybe"`, "allowed: true, false"}},
		"discards without encryption": {map[string]string{names.ParamEncryptionDiscards: "true"}, false,
			[]string{"parameters[carve.csi.local/encryption-discards]", "carve.csi.local/encryption is not set"}},
		"a source": {map[string]string{names.ParamEncryption: "ephemeral"}, true,
			[]string{"spec.dataSource", "begin empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			class := h.class("carve", func(c *storagev1.StorageClass) { c.Parameters = test.parameters })
			claim := h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
				if test.source {
					c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
				}
			})
			_, err := spec.ParseClaim(claim, class)
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v, want %q in it", err, part)
				}
			}
		})
	}
}

func TestAClassThatSendsDiscardsLetsThemThroughItsEncryption(t *testing.T) {
	for name, test := range map[string]struct {
		encryption, discards, fs string
		options                  []string
		refused                  string
	}{
		"not encrypted: they reach the disk":       {options: []string{"discard"}},
		"encrypted and let through":                {encryption: "ephemeral", discards: "true", options: []string{"discard"}},
		"let through, and sent by fstrim alone":    {encryption: "ephemeral", discards: "true"},
		"encrypted and not sent":                   {encryption: "ephemeral", options: []string{"noatime"}},
		"encrypted and explicitly not sent":        {encryption: "ephemeral", options: []string{"nodiscard"}},
		"sent, and taken back by a later option":   {encryption: "ephemeral", options: []string{"discard,noatime", "nodiscard"}},
		"sent to an encryption that keeps them":    {encryption: "ephemeral", options: []string{"noatime", "discard"}, refused: `"discard"`},
		"sent to one that says so":                 {encryption: "ephemeral", discards: "false", options: []string{"discard"}, refused: `"discard"`},
		"sent by a later option":                   {encryption: "ephemeral", options: []string{"nodiscard,discard"}, refused: `"discard"`},
		"sent in btrfs' own way":                   {encryption: "ephemeral", fs: "btrfs", options: []string{"discard=async"}, refused: `"discard=async"`},
		"an unknown option is reported, not these": {encryption: "ephemeral", options: []string{"discard", "what"}, refused: `"what"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.ParseClass(newHarness(t).class("carve", func(c *storagev1.StorageClass) {
				c.MountOptions = test.options
				c.Parameters = map[string]string{names.ParamFSType: test.fs}
				if test.encryption != "" {
					c.Parameters[names.ParamEncryption] = test.encryption
				}
				if test.discards != "" {
					c.Parameters[names.ParamEncryptionDiscards] = test.discards
				}
			}))
			switch {
			case test.refused == "" && err != nil:
				t.Error(err)
			case test.refused != "" && (err == nil || !strings.Contains(err.Error(), "mountOptions: "+test.refused)):
				t.Errorf("error %v, want one about mountOptions and %s", err, test.refused)
			}
		})
	}
}

func TestDiscardsThatEncryptionKeepsBackAreAnEventOnTheClaim(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{names.ParamEncryption: names.EncryptionEphemeral}
		c.MountOptions = []string{"discard"}
	})
	h.run()
	h.claim("c", "", nil)
	h.selectNode("c", "n1")
	h.event(cluster.ReasonFailed, `mountOptions: "discard" for encrypted volumes`, names.ParamEncryptionDiscards+`: "true"`)
	if len(node.Volumes()) != 0 {
		t.Error("a volume was made")
	}
}

func (h *harness) empty(node *lvmdfake.Server, volume string, at time.Time) {
	h.t.Helper()
	node.Empty(volume, at)
	waittest.Until(h.t, "it is reported", func() bool {
		v, _ := h.c.core.Fleet.View("n1")
		return v.ByName[volume].GetEmptiedAt().AsTime().Equal(at)
	})
}

func (h *harness) dataLossEvents(a *audit.Auditor) []string {
	h.drain()
	a.Pass(h.t.Context())
	return slices.DeleteFunc(h.drain(), func(e string) bool { return !strings.Contains(e, cluster.ReasonVolumeEmptied) })
}

func TestUsersOfAVolumeAreNotifiedOnceThatItsDataIsLost(t *testing.T) {
	w := newAuditing(t, "")
	// As with a StatefulSet, the Pod does not own the claim.
	w.pod("user", "n1", "c", v1.PodPending)
	w.pod("done", "n1", "c", v1.PodFailed)
	w.pod("other", "n1", "another", v1.PodRunning)
	when := time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)
	w.empty(w.node, "pvc-uid-c", when)
	wantEvents(t, "the data is lost", w.dataLossEvents(w.a), 3, "Warning VolumeEmptied", "is empty since 2030-01-02T03:04:05Z", "node n1 was restarted")
	waittest.Until(w.t, "it is noted", func() bool {
		obj, exists, err := w.c.core.Volumes.GetStore().GetByKey("pvc-uid-c")
		pv, ok := obj.(*v1.PersistentVolume)
		return err == nil && exists && ok && pv.Annotations[names.AnnotationEmptied] == "2030-01-02T03:04:05Z"
	})
	wantEvents(t, "a pass later", w.dataLossEvents(w.a), 0)
	wantEvents(t, "by another leader", w.dataLossEvents(newAuditor(w.c.core, false, audit.DefaultOrphanGrace, w.a.Busy)), 0)
	w.empty(w.node, "pvc-uid-c", when.Add(time.Hour))
	wantEvents(t, "lost again", w.dataLossEvents(w.a), 3, "Warning VolumeEmptied", "is empty since 2030-01-02T04:04:05Z")
}

func TestThePodOfAnInlineVolumeIsNotifiedOnceThatItsDataIsLost(t *testing.T) {
	w := newAuditing(t, "")
	name := "csi-" + strings.Repeat("0", 64)
	must.Get(w.node.CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{
		Name: name, RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, Encryption: names.EncryptionEphemeral,
		Owner: &lvmdv1.Owner{PodNamespace: "default", PodName: "pod", PodUid: "uid-pod"},
	}))(t)
	waittest.Until(w.t, "the volume is reported", func() bool {
		v, _ := w.c.core.Fleet.View("n1")
		return v.ByName[name] != nil
	})
	began := w.a.Since
	w.empty(w.node, name, began.Add(-2*time.Hour))
	wantEvents(t, "lost long before this leader began", w.dataLossEvents(w.a), 0)
	w.empty(w.node, name, began.Add(-time.Minute))
	wantEvents(t, "lost with the node of the leader before", w.dataLossEvents(w.a), 1, "Warning VolumeEmptied", "node n1 was restarted")
	wantEvents(t, "a pass later", w.dataLossEvents(w.a), 0)
	w.empty(w.node, name, began.Add(24*time.Hour))
	wantEvents(t, "lost again", w.dataLossEvents(w.a), 1, "Warning VolumeEmptied")
	wantEvents(t, "a pass later again", w.dataLossEvents(w.a), 0)
	later := newAuditor(w.c.core, false, audit.DefaultOrphanGrace, w.a.Busy)
	later.Since = began.Add(48 * time.Hour)
	wantEvents(t, "by a leader a day later", w.dataLossEvents(later), 0)
}

func TestAPodThatUsesAVolumeIsNotifiedThatItsDataIsLost(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", encrypted)
	h.run()
	h.boundVolume("c", "n1")
	h.pod("user", "n1", "c", v1.PodRunning)
	node.Empty("pvc-uid-c", time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	waittest.Until(h.t, "it is reported", func() bool {
		v, _ := h.c.core.Fleet.View("n1")
		return v.ByName["pvc-uid-c"].GetEmptiedAt() != nil
	})
	h.audit(false)
	for range 3 { // the volume, the claim and the Pod
		h.event("Warning VolumeEmptied", "is empty since 2030-01-02T03:04:05Z")
	}
}

func TestThePodOfAClaimIsItsOwner(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
	if pod := spec.OwnerPod(claim); pod != nil {
		t.Errorf("%v", pod)
	}
	ofPod(claim)
	if pod := spec.OwnerPod(claim); pod == nil || pod.Namespace != "ns" || pod.Name != "pod" || pod.UID != "uid-pod" || pod.Kind != "Pod" {
		t.Errorf("%v", pod)
	}
	claim.OwnerReferences[0].Kind = "StatefulSet"
	if pod := spec.OwnerPod(claim); pod != nil {
		t.Errorf("%v", pod)
	}
}
