//go:build e2e

package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/e2e/carve"
)

// rights are those that docs/how-to/kubectl-carve.md lists for all commands but adopt, given to the
// account viewer, and a Pod with secrets that never runs; %[1]s is the test's namespace.
const rights = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: viewer, namespace: %[1]s}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: e2e-viewer},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: carve-view},
 subjects: [{kind: ServiceAccount, name: viewer, namespace: %[1]s}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: e2e-support, namespace: carve-system},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: carve-support},
 subjects: [{kind: ServiceAccount, name: viewer, namespace: %[1]s}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: e2e-volumes, namespace: carve-system},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: carve-volumes},
 subjects: [{kind: ServiceAccount, name: viewer, namespace: %[1]s}]}
---
{apiVersion: v1, kind: Secret, metadata: {name: e2e-planted, namespace: carve-system}, stringData: {token: planted-in-a-secret}}
---
{apiVersion: v1, kind: Pod, metadata: {name: e2e-planted, namespace: carve-system, annotations: {note: "password=planted-in-an-annotation"}},
 spec: {schedulerName: none, containers: [{name: app, image: "busybox:1.36", env: [{name: PLAIN, value: planted-in-the-environment}]}]}}
`

// TestKubectlCarveShowsTheClusterWithTheListedRights runs the commands that only look, as an account
// that has the rights which the documents list.
func TestKubectlCarveShowsTheClusterWithTheListedRights(t *testing.T) {
	s := begin(t)
	program := s.kubectlCarve()
	roles, err := os.ReadFile(filepath.Join(deployFolder, "kubectl/rbac.yaml"))
	s.must(err, "read the ClusterRoles")
	objects := string(roles) + "\n---\n" + fmt.Sprintf(rights, s.namespace)
	s.Cleanup(func() {
		_, err := s.Kubectl(context.Background(), strings.NewReader(objects), "delete", "--ignore-not-found", "--filename", "-")
		s.must(err, "remove the rights and the secrets")
	})
	_, err = s.Kubectl(s.ctx, strings.NewReader(objects), "apply", "--filename", "-")
	s.must(err, "make the rights and the secrets")
	as := func(account string, arguments ...string) (string, error) {
		var output bytes.Buffer
		command := exec.CommandContext(s.ctx, program, append(arguments, "--namespace", s.namespace, "--as", "system:serviceaccount:"+s.namespace+":"+account)...)
		command.Stdout, command.Stderr = &output, &output
		err := s.Cluster.RunProgram(command)
		return strings.Join(strings.Fields(output.String()), " "), err
	}
	// shows runs a command that has to succeed, and to print these words, whatever the space between.
	shows := func(words []string, arguments ...string) string {
		t.Helper()
		output, err := as("viewer", arguments...)
		if err != nil {
			t.Errorf("kubectl carve %s: %v: %s", strings.Join(arguments, " "), err, output)
		}
		for _, word := range words {
			if !strings.Contains(output, word) {
				t.Errorf("kubectl carve %s: want %q, got %s", strings.Join(arguments, " "), word, output)
			}
		}
		return output
	}
	both := func(format string) []string {
		return []string{fmt.Sprintf(format, s.nodes[0]), fmt.Sprintf(format, s.nodes[1])}
	}

	s.start("user", podOptions{bytes: 16 * extent, node: s.nodes[0]})
	s.start("greedy", podOptions{bytes: 1 << 50})
	s.running("user")
	_, pv, err := s.EphemeralVolume(s.ctx, s.namespace, "user", "scratch")
	s.must(err, "find the volume of the Pod user")

	shows([]string{"carve.csi.local/carve:dev", "node agents 2 of 2 ready, on 2 nodes", "nodes that offer space 2"}, "status")
	shows(both("%s carve "), "capacity")
	shows([]string{pv.Name, pv.Spec.CSI.VolumeHandle + " " + s.nodes[0] + " carve 64Mi " + s.namespace + "/user-scratch Bound"}, "volumes")
	if got := shows(nil, "volumes", "--node", s.nodes[1]); strings.Contains(got, pv.Name) {
		t.Errorf("volumes of %s: %s", s.nodes[1], got)
	}
	shows([]string{"The Pod runs."}, "why", "user")
	s.must(carve.Until(s.ctx, waitTimeout, "it says why the Pod greedy waits", func(context.Context) error {
		output, err := as("viewer", "why", "greedy")
		for _, word := range append(both("%s: the largest volume of carve is "), "greedy-scratch asks for 1Pi", "next: kubectl carve capacity") {
			if !strings.Contains(output, word) {
				err = errors.Join(err, fmt.Errorf("no %q in %s", word, output))
			}
		}
		return err
	}), "ask why the Pod greedy waits")
	for _, arguments := range [][]string{{"doctor"}, {"doctor", "--agents"}} {
		words := append(both("ok node %s"), "ok driver", "ok controllers", "ok one image", "ok Kubernetes", "ok certificate authority")
		if len(arguments) > 1 {
			words = append(append(words, both("class local of %s")...), both("class thin of %s")...)
		}
		// The agents may have started a moment ago, for another test.
		s.must(carve.Until(s.ctx, waitTimeout, "it finds nothing wrong", func(context.Context) error {
			got, err := as("viewer", arguments...)
			if strings.Contains(got, "WRONG") {
				err = errors.Join(err, fmt.Errorf("something is wrong in %s", got))
			}
			for _, word := range words {
				if !strings.Contains(got, word) {
					err = errors.Join(err, fmt.Errorf("no %q in %s", word, got))
				}
			}
			return err
		}), strings.Join(arguments, " "))
	}
	if got, err := as("viewer", "doctor", "--carve-namespace", s.namespace); err == nil || !strings.Contains(got, "WRONG controllers: there is no Deployment") {
		t.Errorf("doctor where Carve is not: %v: %s", err, got)
	}
	if got := shows(nil, "orphans"); strings.Contains(got, "?") || strings.Contains(got, pv.Spec.CSI.VolumeHandle) {
		t.Errorf("orphans: %s", got)
	}
	if got, err := as("another", "status"); err == nil || !strings.Contains(got, "forbidden") {
		t.Errorf("status without rights: %v: %s", err, got)
	}

	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	shows([]string{"wrote " + file}, "support-bundle", "--file", file)
	held := s.unpacked(file)
	for _, name := range append(both("nodes/%s.yaml"), "volumes/"+pv.Name+".yaml", "claims/"+s.namespace+"/user-scratch.yaml", "classes/carve.yaml",
		"pods/e2e-planted.yaml", "events.yaml", "doctor.yaml", "logs/"+s.agentOf(s.nodes[0]).Name+"/lvmd.log") {
		if held["carve-support/"+name] == "" {
			t.Errorf("the archive has no %s, or nothing in it; not read: %s", name, held["carve-support/not-read.txt"])
		}
	}
	for name, text := range held {
		if strings.Contains(text, "planted-in-") {
			t.Errorf("%s in the archive has a secret:\n%s", name, text)
		}
	}
}

// kubectlCarve builds the plugin and returns its path.
func (s *scope) kubectlCarve() string {
	s.Helper()
	program := filepath.Join(s.TempDir(), "kubectl-carve")
	build := exec.CommandContext(s.ctx, "go", "build", "-o", program, "./cmd/kubectl-carve")
	build.Dir = "../.."
	output, err := build.CombinedOutput()
	s.must(err, "build kubectl-carve: "+string(output))
	return program
}

// unpacked returns what an archive holds, by name.
func (s *scope) unpacked(file string) map[string]string {
	s.Helper()
	content, err := os.Open(file)
	s.must(err, "open the archive")
	defer content.Close()
	zipped, err := gzip.NewReader(content)
	s.must(err, "unpack the archive")
	held := map[string]string{}
	archive := tar.NewReader(zipped)
	for header, err := archive.Next(); !errors.Is(err, io.EOF); header, err = archive.Next() {
		s.must(err, "read the archive")
		text, err := io.ReadAll(archive)
		s.must(err, "read "+header.Name)
		held[header.Name] = string(text)
	}
	return held
}
