package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
	"github.com/carve-csi/carve/e2e/kube"
)

const (
	// SchedulerName is the default name of carve-scheduler's image.
	SchedulerName = "carve.csi.local/carve-scheduler:dev"
	// schedulerUser is not root, as deploy/components/scheduler demands.
	schedulerUser = "65532:65532"
	// schedulerProgram is the name of the program, and of its package.
	schedulerProgram = "carve-scheduler"
)

// Scheduler makes carve-scheduler's image for one minor version of Kubernetes from the source tree and returns its path.
func Scheduler(ctx context.Context, o Options) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "pkg", "scheduler", "plugin")
	file, kubernetes, err := module(dir, orDefault(o.Kubernetes, kube.Version[1:strings.LastIndex(kube.Version, ".")]))
	if err != nil {
		return "", err
	}
	layer, err := o.programLayer(ctx, root, []gobuild.Program{{
		Name: schedulerProgram, Dir: dir, Package: schedulerProgram, Modfile: file, Variables: kube.Variables(kubernetes),
	}})
	if err != nil {
		return "", err
	}
	output := orDefault(o.Output, filepath.Join(root, "bin", "carve-scheduler-image.tar"))
	return output, description{
		name: orDefault(o.Name, SchedulerName), layers: []v1.Layer{layer}, architecture: o.Architecture,
		entrypoint: []string{"/usr/local/bin/" + schedulerProgram}, user: schedulerUser,
	}.write(output)
}

// module returns the file of the module in dir that requires a minor version of Kubernetes, and the whole version:
// go.mod is of the newest, go-MINOR.mod of each older one.
func module(dir, minor string) (file, version string, err error) {
	required := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v` + regexp.QuoteMeta(minor) + `\.\d+)$`)
	for _, file := range []string{"go.mod", "go-" + minor + ".mod"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return "", "", fmt.Errorf("build carve-scheduler for Kubernetes %s: %w", minor, err)
		}
		if match := required.FindSubmatch(content); match != nil {
			return file, string(match[1]), nil
		}
	}
	return "", "", fmt.Errorf("build carve-scheduler for Kubernetes %s: %w", minor, errNoModule)
}

// errNoModule is the error of a version of Kubernetes that no module of the scheduler requires.
var errNoModule = errors.New("go.mod and go-MINOR.mod require other versions")
