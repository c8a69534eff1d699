package kubectl

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
)

// The oldest versions that Carve runs on, as in docs/get-started/install.md.
const (
	oldestKubernetes = "1.33"
	oldestKernel     = "5.12"
)

const tooFar = ", more than one release apart"

// oneImage compares the versions of Carve's Pods, which may be one release apart.
func oneImage(images []string) Check {
	const name, next = "one image", "wait for the rollout; else compare the Deployment and the DaemonSets, and skip no release; see docs/how-to/upgrade.md"
	if len(images) < 2 {
		return passed(name)
	}
	problem := "several are in use: " + strings.Join(images, ", ")
	for _, one := range images {
		for _, other := range images {
			switch near, known := together(tag(one), tag(other)); {
			case !known:
				return wrong(name, problem, next)
			case !near:
				return wrong(name, problem+tooFar, next)
			}
		}
	}
	return note(name, problem, next)
}

func (p *plugin) ownVersion(images []string) Check {
	const name, next = "kubectl carve", "install the kubectl-carve of the installed release; see docs/how-to/upgrade.md"
	result := passed(name)
	for _, image := range images {
		problem := fmt.Sprintf("it is %s, and %s is installed", p.version, image)
		switch near, known := together(p.version, tag(image)); {
		case !known:
			result = note(name, problem+": these cannot be compared", next)
		case !near:
			return wrong(name, problem+tooFar, next)
		}
	}
	return result
}

// together reports whether two versions are at most one release apart, so that they may be used
// together, and whether that is known. A release is a minor version. The last one before a major
// version is unknown, so any counts.
func together(a, b string) (near, known bool) {
	older, err := version.ParseSemantic(a)
	if err != nil {
		return false, false
	}
	newer, err := version.ParseSemantic(b)
	if err != nil {
		return false, false
	}
	if newer.LessThan(older) {
		older, newer = newer, older
	}
	if older.Major() == newer.Major() {
		return newer.Minor() <= older.Minor()+1, true
	}
	return newer.Major() == older.Major()+1 && newer.Minor() == 0, true
}

// tag returns the tag of an image, or, if it has none, a string that is no version.
func tag(image string) string {
	image, _, _ = strings.Cut(image, "@")
	return image[strings.LastIndex(image, ":")+1:]
}

func kubernetesVersion(ctx context.Context, client kubernetes.Interface) (Check, error) {
	const name, next = "Kubernetes", "upgrade the cluster; see docs/how-to/upgrade.md"
	server, err := discovery.ToServerVersionInterfaceWithContext(client.Discovery()).ServerVersionWithContext(ctx)
	if err != nil {
		return Check{}, fmt.Errorf("read the API server's version: %w", err)
	}
	switch old, known := before(server.GitVersion, oldestKubernetes); {
	case !known:
		return note(name, fmt.Sprintf("the API server's version %s cannot be read; Carve needs %s or newer", server.GitVersion, oldestKubernetes), next), nil
	case old:
		return wrong(name, fmt.Sprintf("the API server is %s, and Carve needs %s or newer", server.GitVersion, oldestKubernetes), next), nil
	}
	return passed(name), nil
}

// before reports whether a version is older than oldest, and whether that is known. It ignores
// suffixes.
func before(text, oldest string) (old, known bool) {
	v, err := version.ParseGeneric(text)
	return err == nil && v.LessThan(version.MustParseGeneric(oldest)), err == nil
}
