//go:build e2e

package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/earlier"
	"github.com/carve-csi/carve/e2e/image"
)

const (
	earlierImage  = "carve.csi.local/carve:earlier"
	lvmdContainer = "lvmd"
)

// release is a version of Carve as it is installed: the agents, and everything else.
type release struct {
	agents *appsv1.DaemonSet
	others string
}

// TestTheVersionBeforeIsUpgradedAndGoneBackTo has Pods write while the earlier version is replaced by
// this one and comes back. In between, the controller and the node plugin are of the one version, and
// lvmd, which both call and which may be a service of the host, is of the other. In each state volumes are
// made, and those of the state before are deleted; a volume that was deleted at first is being wiped all
// the time.
func TestTheVersionBeforeIsUpgradedAndGoneBackTo(t *testing.T) {
	tree, err := earlier.Tree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := begin(t)
	root, err := checkout.Root()
	s.must(err, "find the source tree")
	output, err := image.Carve(s.ctx, image.Options{
		Root: tree, Name: earlierImage, Version: "earlier", Output: filepath.Join(t.TempDir(), "earlier.tar"), Progress: t.Output()})
	s.must(err, "build the earlier image")
	s.must(s.Cluster.LoadImage(s.ctx, output), "load the earlier image")
	before, after := s.release(tree, earlierImage), s.release(root, "")
	s.Cleanup(s.installedAgain)
	free := map[string]int64{}
	for _, node := range s.nodes {
		free[node] = s.capacity(node)
	}

	s.install(before.others, manifest(s, before.agents))
	s.wantImages(earlierImage, earlierImage, earlierImage)
	s.create(writer("writer-0", "carve", s.nodes[0]), writer("writer-1", "carve", s.nodes[1]))
	writers := []string{"writer-0", "writer-1"}
	s.running(writers...)
	s.start("wiped", podOptions{bytes: 96 * extent, node: s.nodes[0]})
	s.running("wiped")
	s.remove("wiped")
	var wiped string
	s.must(carve.Until(s.ctx, waitTimeout, "a volume is being wiped", func(ctx context.Context) (err error) {
		wiped, err = s.beingWiped(ctx)
		return err
	}), "delete a volume")
	current := strings.TrimSuffix(earlierImage, "earlier") + "dev"
	var made []string
	for _, state := range []struct {
		name         string
		install      []string
		lvmd, others string
	}{
		{"earlier", nil, earlierImage, earlierImage},
		{"older-lvmd", []string{after.others, manifest(s, withPlugin(before.agents, after.agents))}, earlierImage, current},
		{"upgraded", []string{manifest(s, after.agents)}, current, current},
		{"newer-lvmd", []string{before.others, manifest(s, withPlugin(after.agents, before.agents))}, current, earlierImage},
		{"gone-back", []string{manifest(s, before.agents)}, earlierImage, earlierImage},
	} {
		s.install(state.install...)
		s.wantImages(state.others, state.lvmd, state.others)
		s.wantWriting(state.name, writers)
		var now []string
		for i, node := range s.nodes {
			now = append(now, fmt.Sprintf("%s-%d", state.name, i))
			s.start(now[i], podOptions{bytes: 8 * extent, node: node})
		}
		s.running(now...)
		for _, name := range slices.Concat(made, now) {
			s.wantMarker(name)
		}
		if len(made) > 0 {
			s.remove(made...)
		}
		made = now
		if got, err := s.beingWiped(s.ctx); err != nil || got != wiped {
			s.Errorf("%s: %s was being wiped, and now %q is, error %v", state.name, wiped, got, err)
		}
	}
	for _, name := range writers {
		if got := s.restarts(name); got != 0 {
			t.Errorf("restarts of %s: want 0, got %d", name, got)
		}
		if got, err := s.Kubectl(s.ctx, nil, "logs", "--namespace", s.namespace, name); err != nil || got != "" {
			t.Errorf("what %s warns of: want nothing, got %q, %v", name, got, err)
		}
	}
	s.installedAgain() // New agents wipe as fast as they can.
	s.remove(slices.Concat(made, writers)...)
	s.noVolumes()
	for _, node := range s.nodes {
		s.capacityOf(node, func(bytes int64) bool { return bytes == free[node] })
	}
}

var defaultClass = regexp.MustCompile(`(?m)^( *)default: true\n`)

// release renders what the harness installs of a source tree, with wipes that last, and another
// image if one is named.
func (s *scope) release(root, image string) release {
	s.Helper()
	rendered, err := s.Kubectl(s.ctx, nil, "kustomize", filepath.Join(root, "e2e", "deploy"))
	s.must(err, "render the manifests of "+root)
	var r release
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var object metav1.PartialObjectMetadata
		s.must(yaml.Unmarshal([]byte(document), &object), "read a manifest")
		switch {
		case object.Kind == "DaemonSet":
			r.agents = &appsv1.DaemonSet{}
			s.must(yaml.Unmarshal([]byte(withImage(document, image)), r.agents), "read the agents' manifest")
			continue
		case object.Kind == "ConfigMap" && defaultClass.MatchString(document):
			// The agents of either version mount the one of their own.
			document = defaultClass.ReplaceAllString(document, "${1}default: true\n${1}wipeRate: 1Mi\n")
		}
		r.others += "---\n" + document + "\n"
	}
	if r.agents == nil || !strings.Contains(r.others, "wipeRate") {
		s.Fatalf("the manifests of %s have no agents, or no configuration:\n%s", root, rendered)
	}
	r.others = withImage(r.others, image)
	return r
}

// withImage has an image in place of that of this version, if one is named.
func withImage(manifests, image string) string {
	if image == "" {
		return manifests
	}
	return strings.ReplaceAll(manifests, strings.TrimSuffix(image, "earlier")+"dev", image)
}

// withPlugin returns the agents with the containers of other agents, but lvmd, in place of their own.
func withPlugin(agents, others *appsv1.DaemonSet) *appsv1.DaemonSet {
	agents = agents.DeepCopy()
	pod, other := &agents.Spec.Template.Spec, &others.Spec.Template.Spec
	isLVMD := func(c corev1.Container) bool { return c.Name == lvmdContainer }
	pod.Containers = slices.DeleteFunc(pod.Containers, func(c corev1.Container) bool { return !isLVMD(c) })
	pod.Containers = append(pod.Containers, slices.DeleteFunc(slices.Clone(other.Containers), isLVMD)...)
	for _, volume := range other.Volumes {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
			pod.Volumes = append(pod.Volumes, volume)
		}
	}
	return agents
}

func manifest(s *scope, object any) string {
	s.Helper()
	content, err := yaml.Marshal(object)
	s.must(err, "write a manifest")
	return string(content)
}

// install applies manifests, and waits until what they replace is gone.
func (s *scope) install(manifests ...string) {
	s.Helper()
	for _, m := range manifests {
		_, err := s.Kubectl(s.ctx, strings.NewReader(m), "apply", "--filename", "-")
		s.must(err, "apply the manifests")
	}
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is whole")
}

// installedAgain installs what the harness does.
func (s *scope) installedAgain() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
	defer cancel()
	if s.Failed() {
		s.Diagnose(ctx, s.Output())
	}
	_, err := s.Kubectl(ctx, nil, "apply", "--kustomize", "../deploy")
	s.must(err, "install again what the harness does")
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is well again")
}

// wantImages waits until all controllers, lvmds and node plugins run these images: a rollout is
// complete before the last Pod that it replaces is gone.
func (s *scope) wantImages(controller, lvmd, plugin string) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "controllers and agents run the images", func(ctx context.Context) error {
		for selector, others := range map[string]string{controllerPods: controller, agentPods: plugin} {
			pods, err := s.ProgramPods(ctx, selector)
			if err != nil {
				return err
			}
			if len(pods) == 0 {
				return fmt.Errorf("there are no Pods with %s", selector)
			}
			for _, pod := range pods {
				for _, container := range pod.Spec.Containers {
					want := others
					if container.Name == lvmdContainer {
						want = lvmd
					}
					if container.Image != want {
						return fmt.Errorf("%s of %s runs %s, want %s", container.Name, pod.Name, container.Image, want)
					}
				}
			}
		}
		return nil
	}), "replace the programs")
}

// beingWiped returns the logical volume of the test that is deleted and is there.
func (s *scope) beingWiped(ctx context.Context) (string, error) {
	var found []string
	for _, node := range s.nodes {
		volumes, err := s.LogicalVolumes(ctx, node)
		if err != nil {
			return "", err
		}
		for _, v := range volumes {
			if slices.Contains(v.Tags, "carve.deleted") && slices.Contains(v.Tags, "carve.ns="+s.namespace) && v.SizeBytes == 96*extent {
				found = append(found, node+"/"+v.Name)
			}
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("volumes that are being wiped: want one, got %q", found)
	}
	return found[0], nil
}
