//go:build e2e

package tests

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAMistakeIsExplainedOnTheClaim makes a claim that cannot be served. It gets an Event that names what was
// given and what the nodes have; nothing is created. pkg/controller tests the message of each mistake.
func TestAMistakeIsExplainedOnTheClaim(t *testing.T) {
	s := beside(t)
	const class, claim = "e2e-mistake", "wrong-scratch"
	s.storageClass(class, map[string]string{"carve.csi.local/device-class": "floppy"})
	s.start("wrong", podOptions{class: class, bytes: 64 << 20})
	event, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "PersistentVolumeClaim", claim, "floppy")
	s.must(err, "see the message")
	for _, want := range []string{"carve.csi.local/device-class", "local", "thin"} {
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
// by itself, before it touches anything. api/config tests the message of each mistake.
func TestMalformedConfigurationStopsLvmdWithItsLine(t *testing.T) {
	s := begin(t)
	const config = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n  - name: a\n    volumeGroup: carve\n    colour: blue\n"
	agents, err := s.ProgramPods(s.ctx, agentPods)
	s.must(err, "find a node agent")
	const start = `cat > /tmp/lvmd.yaml && exec timeout 60 /usr/local/bin/carve-lvmd --config=/tmp/lvmd.yaml --socket=/tmp/lvmd.sock ` +
		`--state-dir=/tmp/state --lock-dir=/tmp/locks --node-name=no-node --controller= --ops-listen=`
	output, err := s.Kubectl(s.ctx, strings.NewReader(config), "exec", "--stdin", "--namespace", carve.Namespace,
		agents[0].Name, "--container", "lvmd", "--", "sh", "-c", start)
	if err == nil {
		t.Fatalf("want a refusal, got %q", output)
	}
	for _, want := range []string{":6", "colour"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message: want %q in it, got %v", want, err)
		}
	}
}
