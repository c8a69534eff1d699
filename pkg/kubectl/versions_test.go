package kubectl

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	discovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/carve-csi/carve/pkg/must"
)

func TestDoctorComparesVersions(t *testing.T) {
	for name, test := range map[string]struct {
		own, controller, agents, kubernetes, kernel string
		want                                        string
	}{
		"equal":                              {want: "ok kubectl carve"},
		"an agent one release ahead":         {agents: "carve:v0.3.1", want: "note one image: several are in use: carve:v0.2.0, carve:v0.3.1"},
		"an agent two releases ahead":        {agents: "carve:v0.4.0", want: "WRONG one image: several are in use: carve:v0.2.0, carve:v0.4.0, more than one release apart"},
		"images without a version":           {agents: "carve:dev", want: "WRONG one image: several are in use: carve:dev, carve:v0.2.0"},
		"the plugin one release behind":      {own: "v0.1.7", want: "ok kubectl carve"},
		"the plugin one release ahead":       {own: "v0.3.0-4-gabcdef0-dirty", want: "ok kubectl carve"},
		"the plugin two releases ahead":      {own: "v0.4.0", want: "WRONG kubectl carve: it is v0.4.0, and carve:v0.2.0 is installed, more than one release apart"},
		"the plugin two releases behind":     {own: "v0.0.9", want: "WRONG kubectl carve: it is v0.0.9"},
		"a first release of the next number": {own: "v1.0.0", want: "ok kubectl carve"},
		"a later release of the next number": {own: "v1.1.0", want: "WRONG kubectl carve: it is v1.1.0"},
		"a plugin without a version":         {own: "development", want: `note kubectl carve: it is development, and carve:v0.2.0 is installed: these cannot be compared`},
		"an image by its digest":             {controller: "r:5000/c@sha256:ab", agents: "r:5000/c@sha256:ab", want: `note kubectl carve: it is v0.2.0, and r:5000/c@sha256:ab is installed: these cannot be compared`},
		"an image by its tag and digest":     {controller: "r:5000/c:v0.5.0@sha256:ab", agents: "r:5000/c:v0.5.0@sha256:ab", want: "WRONG kubectl carve: it is v0.2.0, and r:5000/c:v0.5.0@sha256:ab"},
		"the oldest Kubernetes":              {kubernetes: "v1.33.0+k3s1", want: "ok Kubernetes"},
		"a Kubernetes before":                {kubernetes: "v1.32.14-eks-113cf36", want: "WRONG Kubernetes: the API server is v1.32.14-eks-113cf36, and Carve needs 1.33 or newer"},
		"a Kubernetes that does not say":     {kubernetes: "unknown", want: "note Kubernetes: the API server's version unknown"},
		"the oldest kernel":                  {kernel: "5.12.0", want: "ok node n1"},
		"a kernel before":                    {kernel: "5.10.220-209.869.amzn2.x86_64", want: "WRONG node n1: its kernel is 5.10.220-209.869.amzn2.x86_64, and Carve needs Linux 5.12 or newer"},
		"a kernel of which nothing is known": {kernel: "custom", want: "ok node n1"},
	} {
		t.Run(name, func(t *testing.T) {
			list := objects()
			for _, o := range list {
				switch o := o.(type) {
				case *corev1.Pod:
					if image := map[string]string{"carve-controller": test.controller, "carve-node": test.agents}[o.Labels[labelName]]; image != "" {
						o.Spec.Containers[0].Image = image
					}
				case *corev1.Node:
					if test.kernel != "" {
						o.Status.NodeInfo.KernelVersion = test.kernel
					}
				}
			}
			client := fake.NewClientset(list...)
			if test.kubernetes != "" {
				client.Discovery().(*discovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: test.kubernetes}
			}
			own := test.own
			if own == "" {
				own = "v0.2.0"
			}
			got, err := callVersion(t, client, nil, own, "doctor")
			if !strings.Contains(strings.Join(strings.Fields(got), " ")+" ", test.want) || errors.Is(err, ErrUnhealthy) != strings.HasPrefix(test.want, "WRONG") {
				t.Errorf("want %s, got %v\n%s", test.want, err, got)
			}
		})
	}
}

func TestTheOldestVersionsAreThoseOfTheDocuments(t *testing.T) {
	for name, want := range map[string]string{
		"../../docs/get-started/install.md":   "Kubernetes must be " + oldestKubernetes + " or newer. Each node needs Linux " + oldestKernel + " or newer",
		"../../docs/how-to/upgrade.md":        "Carve runs on Kubernetes " + oldestKubernetes + " and newer",
		"../../deploy/chart/carve/Chart.yaml": `kubeVersion: ">=` + oldestKubernetes + `.0-0"`,
		"../../Makefile":                      "\nOLDER     := " + oldestKubernetes + ".",
		"../controller/kubernetes_test.go":    "\nconst oldest = " + strings.TrimPrefix(oldestKubernetes, "1.") + "\n",
	} {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: want %q, got %v", name, want, err)
		}
	}
}

func TestEveryVersionThatIsTestedIsStated(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/how-to/upgrade.md"))(t))
	older := regexp.MustCompile(`(?m)^OLDER +:= (.+)$`).FindStringSubmatch(string(must.Get(os.ReadFile("../../Makefile"))(t)))
	newest := regexp.MustCompile(`(?m)^const Version = "v(.+)"$`).FindStringSubmatch(string(must.Get(os.ReadFile("../../e2e/kube/kube.go"))(t)))
	if older == nil || newest == nil {
		t.Fatalf("the versions are not found: older %v, newest %v", older, newest)
	}
	for _, tested := range append(strings.Fields(older[1]), newest[1]) {
		if !strings.Contains(page, "\n| "+tested+" | ") {
			t.Errorf("docs/how-to/upgrade.md does not say how the tests with Kubernetes %s went", tested)
		}
	}
}
