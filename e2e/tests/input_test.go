//go:build e2e

package tests

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestMistakesAreExplainedOnTheClaim makes claims that cannot be served. Each
// gets an event that names the field, what was given and what is allowed;
// nothing is created.
func TestMistakesAreExplainedOnTheClaim(t *testing.T) {
	tests := []struct {
		name       string
		parameters map[string]string
		mode       corev1.PersistentVolumeAccessMode
		want       []string
	}{
		{
			name:       "an unknown parameter",
			parameters: map[string]string{"carve.csi.local/colour": "blue"},
			want:       []string{"carve.csi.local/colour", "carve.csi.local/device-class", "csi.storage.k8s.io/fstype"},
		},
		{
			name:       "an unknown device class",
			parameters: map[string]string{"carve.csi.local/device-class": "floppy"},
			want:       []string{"floppy", "local", "thin"},
		},
		{
			name:       "a file system that is not offered",
			parameters: map[string]string{"csi.storage.k8s.io/fstype": "ntfs"},
			want:       []string{"ntfs", "ext4", "xfs"},
		},
		{
			name: "an access mode that a local volume cannot have",
			mode: corev1.ReadWriteMany,
			want: []string{"ReadWriteMany", "ReadWriteOnce"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := beside(t)
			class := "e2e-" + s.namespace[max(0, len(s.namespace)-40):]
			s.storageClass(class, test.parameters)
			s.start("wrong", podOptions{class: class, bytes: 64 << 20})
			claim := "wrong-scratch"
			if test.mode != "" {
				claim = "wrong-mode"
				s.claimAndPod(claim, class, test.mode)
			}
			event, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "PersistentVolumeClaim", claim, test.want[0])
			s.must(err, "see the message")
			for _, want := range test.want {
				if !strings.Contains(event.Message, want) {
					t.Errorf("the event: want %q in it, got %q", want, event.Message)
				}
			}
			if event.Type != corev1.EventTypeWarning {
				t.Errorf("the event's type: want Warning, got %s", event.Type)
			}
			got, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Get(s.ctx, claim, metav1.GetOptions{})
			s.must(err, "get the claim")
			if got.Status.Phase != corev1.ClaimPending {
				t.Errorf("the claim: want Pending, got %s", got.Status.Phase)
			}
		})
	}
}

// claimAndPod makes a claim with an access mode and a Pod that uses it.
func (s *scope) claimAndPod(name, class string, mode corev1.PersistentVolumeAccessMode) {
	s.Helper()
	spec := claimSpec(podOptions{class: class, bytes: 64 << 20})
	spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	s.createClaim(name, spec)
	s.create(podOf("pod-"+name, name, podOptions{}))
}

func TestClaimLargerThanAnyVolumeGroupIsExplained(t *testing.T) {
	s := beside(t)
	s.start("huge", podOptions{bytes: 1 << 50})
	s.schedulerSays("huge", noSpace)
	_, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "PersistentVolumeClaim", "huge-scratch", "largest")
	s.must(err, "see what could be had")
}

func TestClaimOfNothingIsRefused(t *testing.T) {
	s := beside(t)
	_, err := s.CoreV1().Pods(s.namespace).Create(s.ctx, pod("nothing", podOptions{bytes: 0}), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "storage") {
		t.Errorf("a claim of zero bytes: want an error that names the field, got %v", err)
	}
}

// TestMalformedConfigurationStopsLvmdWithItsLine starts a second lvmd, with a
// socket and a journal of its own, beside the one that a node has. It must end
// by itself, before it touches anything.
func TestMalformedConfigurationStopsLvmdWithItsLine(t *testing.T) {
	s := begin(t)
	const head = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"
	tests := []struct {
		name, config string
		want         []string
	}{
		{"an unknown key", head + "  - name: a\n    volumeGroup: carve\n    colour: blue\n", []string{":6", "colour"}},
		{"a class that is there twice", head + "  - name: a\n    volumeGroup: carve\n  - name: a\n    volumeGroup: carve\n", []string{":6", `"a"`}},
		{"a class of a group and of several", head + "  - name: a\n    volumeGroup: carve\n    volumeGroups: [other]\n", []string{":4", "volumeGroups", "given together with volumeGroup"}},
	}
	agents, err := s.ProgramPods(s.ctx, agentPods)
	s.must(err, "find a node agent")
	const start = `cat > /tmp/lvmd.yaml && exec timeout 60 /usr/local/bin/carve-lvmd --config=/tmp/lvmd.yaml --socket=/tmp/lvmd.sock ` +
		`--state-dir=/tmp/state --lock-dir=/tmp/locks --node-name=no-node --controller= --ops-listen=`
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			output, err := s.Kubectl(s.ctx, strings.NewReader(test.config), "exec", "--stdin", "--namespace", carve.Namespace,
				agents[0].Name, "--container", "lvmd", "--", "sh", "-c", start)
			if err == nil {
				t.Fatalf("want a refusal, got %q", output)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message: want %q in it, got %v", want, err)
				}
			}
		})
	}
}
