package controller

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/waittest"
)

func withKey(name, namespace string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{names.ParamEncryption: names.EncryptionLUKS,
			names.ParamStageSecretName: name, names.ParamStageSecretNamespace: namespace}
	}
}

func TestTheSecretOfAClaimIsFoundByUpstreamsTemplates(t *testing.T) {
	for name, test := range map[string]struct {
		name, namespace string
		want            string
		refused         []string
	}{
		"fixed names":                        {"key", "vault", "vault/key", nil},
		"the claim's":                        {"${pvc.name}-key", "${pvc.namespace}", "default/c-key", nil},
		"the volume's":                       {"${pv.name}", "ns-${pvc.namespace}", "default/", nil},
		"an annotation's":                    {"${pvc.annotations['example.com/key']}", "vault", "vault/mine", nil},
		"an annotation that is missing":      {"${pvc.annotations['example.com/other']}", "vault", "", []string{"node-stage-secret-name", "${pvc.annotations['example.com/other']}", "${pvc.name}"}},
		"an unknown variable":                {"${pvc.uid}", "vault", "", []string{"node-stage-secret-name", "${pvc.uid}"}},
		"a namespace that the author chose":  {"key", "${pvc.name}", "", []string{"node-stage-secret-namespace", "${pvc.name}", "${pvc.namespace}, ${pv.name}"}},
		"a namespace by annotation":          {"key", "${pvc.annotations['example.com/key']}", "", []string{"node-stage-secret-namespace"}},
		"what cannot be a name":              {"Key_of_${pvc.name}", "vault", "", []string{"node-stage-secret-name", `"Key_of_c"`}},
		"what cannot be a namespace":         {"key", "va.ult", "", []string{"node-stage-secret-namespace", `"va.ult"`}},
		"an annotation with a path for name": {"${pvc.annotations['bad']}", "vault", "", []string{"node-stage-secret-name", `"../root"`}},
		"no name":                            {"", "vault", "", []string{"node-stage-secret-name", "nothing"}},
		"no namespace":                       {"key", "", "", []string{"node-stage-secret-namespace", "nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			class := h.class("carve", withKey(test.name, test.namespace))
			claim := h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
				c.Annotations = map[string]string{"example.com/key": "mine", "bad": "../root"}
			})
			_, err := spec.ParseClaim(claim, class)
			for _, part := range test.refused {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v, want %q in it", err, part)
				}
			}
			if test.refused != nil {
				return
			}
			ref, refErr := spec.StageSecret(class, claim)
			want := test.want
			if name == "the volume's" {
				want = "ns-" + claim.Namespace + "/" + spec.VolumeName(claim)
			}
			if err != nil || refErr != nil || strings.Replace(want, "default/", claim.Namespace+"/", 1) != ref.Namespace+"/"+ref.Name {
				t.Errorf("Secret %v, want %s; errors %v, %v", ref, want, err, refErr)
			}
		})
	}
}

func TestASecretThatNothingReadsIsRefused(t *testing.T) {
	for _, kind := range []string{"", names.EncryptionEphemeral} {
		h := newHarness(t)
		_, err := spec.ParseClaim(h.claim("c", "", nil), h.class("carve", func(c *storagev1.StorageClass) {
			withKey("key", "vault")(c)
			c.Parameters[names.ParamEncryption] = kind
		}))
		if err == nil || !strings.Contains(err.Error(), "none without carve.csi.local/encryption: luks") {
			t.Errorf("encryption %q: %v", kind, err)
		}
	}
}

func TestThePersistentVolumeNamesTheSecretAndSpaceIsKeptForTheHeader(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", withKey("${pvc.name}-key", "${pvc.namespace}"))
	h.run()
	h.boundVolume("c", "n1")
	if v := node.Volumes()["pvc-uid-c"]; v.GetEncryption() != names.EncryptionLUKS {
		t.Errorf("volume %v", v)
	}
	claim := h.getClaim("c")
	pv := provision.NewPersistentVolume(claim, mustClass(t, h), "n1", node.Volumes()["pvc-uid-c"], "x")
	if ref := pv.Spec.CSI.NodeStageSecretRef; ref == nil || ref.Name != "c-key" || ref.Namespace != claim.Namespace {
		t.Errorf("Secret %v", ref)
	}
	r, err := spec.ParseClaim(claim, mustClass(t, h))
	if err != nil || r.Footprint() != r.Bytes+16*mib {
		t.Errorf("%d bytes are reserved for %d, error %v", r.Footprint(), r.Bytes, err)
	}
}

func TestFreeSpaceIsReportedWithoutWhatHeadersTake(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", withKey("key", "vault"))
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib-16*mib))
}

func TestAClaimWithoutTheAnnotationThatItsSecretIsNamedByHasAnEvent(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", withKey("${pvc.annotations['key']}", "vault"))
	h.run()
	h.claim("c", "", nil)
	h.selectNode("c", "n1")
	h.event(cluster.ReasonFailed, names.ParamStageSecretName, "${pvc.annotations['key']}")
	if len(node.Volumes()) != 0 {
		t.Error("a volume was made")
	}
}
