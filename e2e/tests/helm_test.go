//go:build e2e

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestTheChartIsInstalledUpgradedAndRemoved has Helm do what docs/how-to/install-with-helm.md
// says, instead of what the harness installs.
func TestTheChartIsInstalledUpgradedAndRemoved(t *testing.T) {
	s := begin(t)
	helm := s.buildHelm()
	s.Cleanup(s.withoutChart)
	_, err := s.Kubectl(s.ctx, nil, "delete", "--kustomize", "../deploy", "--ignore-not-found")
	s.must(err, "remove what the harness installs")
	s.must(s.nothingOfCarve(s.ctx), "remove what the harness installs")

	_, err = s.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: carve.Namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}, metav1.CreateOptions{})
	s.must(err, "make Carve's namespace")
	arguments := []string{
		"carve", "../../deploy/chart/carve", "--namespace", carve.Namespace, "--wait", "--timeout", "5m",
		"--set", "image.repository=carve.csi.local/carve,image.tag=dev",
	}
	// Nothing is prepared on the nodes for this one: helm --wait returns all the same.
	s.helm(helm, append([]string{"install"}, append(arguments,
		"--set-json", `lvmd.config.deviceClasses=[{"name": "local", "default": true, "volumeGroup": "`+laterGroup+`"}]`)...)...)
	s.usableOnceThereIsAGroup()
	s.helm(helm, append([]string{"upgrade"}, append(arguments, "--reset-values")...)...)
	for _, node := range s.nodes {
		s.capacityOf(node, func(now int64) bool { return now > 0 })
	}
	s.start("before", podOptions{bytes: 16 * extent, node: s.nodes[0]})
	s.running("before")
	s.wantMarker("before")

	// A pool of nodes with a configuration of its own, in which a reserve shows, and one with the chart's.
	whole := s.capacity(s.nodes[1])
	s.helm(helm, append([]string{"upgrade"}, append(arguments, "--reset-then-reuse-values", "--set-json", fmt.Sprintf(`nodePools=[
		{"name": "reserved", "nodeSelector": {"kubernetes.io/hostname": %q}, "config": {"apiVersion": "carve.csi.local/v1", "kind": "LvmdConfig",
			"deviceClasses": [{"name": "local", "default": true, "volumeGroup": "carve", "reserve": "20%%"}]}},
		{"name": "whole", "nodeSelector": {"kubernetes.io/hostname": %q}}]`, s.nodes[0], s.nodes[1]))...)...)
	s.capacityOf(s.nodes[0], func(now int64) bool { return now <= whole*9/10 })
	s.capacityOf(s.nodes[1], func(now int64) bool { return now > whole*9/10 })
	s.wantMarker("before")
	for i, node := range s.nodes {
		name := fmt.Sprint("pool-", i)
		s.start(name, podOptions{bytes: 16 * extent, node: node})
		s.running(name)
		s.wantMarker(name)
		s.remove(name)
	}
	// The revision before has no pools.
	s.helm(helm, "rollback", "carve", "--namespace", carve.Namespace, "--wait", "--timeout", "5m")
	for _, node := range s.nodes {
		s.capacityOf(node, func(now int64) bool { return now > whole*9/10 })
	}
	s.wantMarker("before")
	s.start("after", podOptions{bytes: 16 * extent, node: s.nodes[1]})
	s.running("after")
	s.wantMarker("after")
	s.remove("before", "after")
	s.noVolumes()

	s.helm(helm, "uninstall", "carve", "--namespace", carve.Namespace, "--wait", "--timeout", "5m")
	_, err = s.Kubectl(s.ctx, nil, "delete", "namespace", carve.Namespace)
	s.must(err, "remove the namespace")
	s.must(s.nothingOfCarve(s.ctx), "remove the chart")
}

// laterGroup is a volume group that no node has at first, laterDisk the file that one gets it on.
const laterGroup, laterDisk = "carve-later", "/var/lib/carve-later.img"

// usableOnceThereIsAGroup wants nodes without their volume group to be named by Events and
// to offer nothing, until one of them has it.
func (s *scope) usableOnceThereIsAGroup() {
	s.Helper()
	for _, node := range s.nodes {
		s.must(carve.Until(s.ctx, waitTimeout, "an Event says what "+node+" lacks", func(ctx context.Context) error {
			events, err := s.Events(ctx, metav1.NamespaceDefault, "Node", node)
			if err == nil && !slices.ContainsFunc(events, func(e corev1.Event) bool {
				return e.Reason == "DeviceClassUnhealthy" && strings.Contains(e.Message, "VolumeGroupMissing") && strings.Contains(e.Message, laterGroup)
			}) {
				err = fmt.Errorf("want DeviceClassUnhealthy, got %d Events", len(events))
			}
			return err
		}), "wait for the Event")
		s.capacityOf(node, func(bytes int64) bool { return bytes == 0 })
	}
	with, without := s.nodes[0], s.nodes[1]
	s.Cleanup(func() { // where the test ended early
		if _, err := s.NodeExec(context.Background(), with, "sh", "-c", dropLaterGroup); err != nil {
			s.Errorf("remove the volume group: %v", err)
		}
	})
	s.node(with, "sh", "-c", fmt.Sprintf(`truncate --size 1G %[1]s && vgcreate %[2]s "$(losetup --find --show %[1]s)"`, laterDisk, laterGroup))
	s.capacityOf(with, func(bytes int64) bool { return bytes > 512*mebibyte })
	s.capacityOf(without, func(bytes int64) bool { return bytes == 0 })
	s.start("later", podOptions{bytes: 16 * extent})
	s.running("later")
	if got := s.nodeOf("later"); got != with {
		s.Errorf("node of the Pod: want %s, which has the group, got %s", with, got)
	}
	s.wantMarker("later")
	s.remove("later")
	s.noVolumes()
	if left := s.node(with, "lvs", "--noheadings", "--options", "lv_name", laterGroup); strings.TrimSpace(left) != "" {
		s.Errorf("left in %s: %s", laterGroup, left)
	}
	s.node(with, "sh", "-c", dropLaterGroup)
}

// dropLaterGroup removes the group and its disk, if they are there.
const dropLaterGroup = `set -e; if vgs ` + laterGroup + `; then vgremove --force --yes ` + laterGroup + `; fi
	for device in $(losetup --noheadings --output NAME --associated ` + laterDisk + `); do losetup --detach $device; done; rm -f ` + laterDisk

func (s *scope) capacityOf(node string, check func(bytes int64) bool) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the capacity of "+node+" is as expected", func(ctx context.Context) error {
		got, err := s.CapacityBytes(ctx, node, "carve")
		if err == nil && !check(got) {
			err = fmt.Errorf("it is %d", got)
		}
		return err
	}), "wait for the capacity")
}

// buildHelm builds the Helm that the module release asks for and returns its path.
func (s *scope) buildHelm() string {
	s.Helper()
	helm := filepath.Join(s.TempDir(), "helm")
	command := exec.CommandContext(s.ctx, "go", "build", "-o", helm, "helm.sh/helm/v4/cmd/helm")
	command.Dir = "../../release"
	output, err := command.CombinedOutput()
	s.must(err, "build helm: "+string(output))
	return helm
}

func (s *scope) helm(program string, arguments ...string) {
	s.Helper()
	var output bytes.Buffer
	command := exec.CommandContext(s.ctx, program, arguments...)
	command.Stdout, command.Stderr = &output, &output
	err := s.Cluster.RunProgram(command)
	s.must(err, fmt.Sprintf("helm %s: %s", strings.Join(arguments, " "), output.String()))
}

// nothingOfCarve waits until no object of any kind has Carve's label or is in its namespace.
func (s *scope) nothingOfCarve(ctx context.Context) error {
	kinds, err := s.Kubectl(ctx, nil, "api-resources", "--verbs=list", "--output=name")
	if err != nil {
		return err
	}
	return carve.Until(ctx, waitTimeout, "nothing of Carve is left", func(ctx context.Context) error {
		if _, err := s.CoreV1().Namespaces().Get(ctx, carve.Namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the namespace is there"), err)
		}
		left, err := s.Kubectl(ctx, nil, "get", strings.Join(strings.Fields(kinds), ","), "--all-namespaces",
			"--selector", "app.kubernetes.io/part-of=carve", "--output=name", "--ignore-not-found")
		if err == nil && strings.TrimSpace(left) != "" {
			err = fmt.Errorf("there are %s", strings.Join(strings.Fields(left), ", "))
		}
		return err
	})
}

// withoutChart removes what a test that failed left of the chart, and installs again what
// the harness does.
func (s *scope) withoutChart() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*waitTimeout)
	defer cancel()
	if s.Failed() {
		s.Diagnose(ctx, s.Output())
		_, err := s.Kubectl(ctx, nil, "delete", "namespace", carve.Namespace, "--ignore-not-found")
		s.must(err, "remove the namespace")
	}
	_, err := s.Kubectl(ctx, nil, "apply", "--kustomize", "../deploy")
	s.must(err, "install again what the harness does")
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is well again")
}
