// Package dist makes what a release has beside the images of single architectures: an image
// index of each, lists of what they are made of, the chart's package, plain manifests,
// kubectl-carve for several platforms, checksums of all, and a signature of them. The same
// sources and images give the same bytes.
package dist

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/sbom"
	"github.com/carve-csi/carve/release/version"
)

// Names of files in a release.
const (
	Checksums = "SHA256SUMS"
	Signature = "SHA256SUMS.sig"
)

// Platform is an operating system and an architecture, as Go calls them.
type Platform struct{ OS, Arch string }

// Platforms are those that kubectl-carve is built for.
var Platforms = []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// Options say what to make.
type Options struct {
	// Root is the source tree, Dir the folder to write to. What is in it already is of the
	// release: the archives of Images.
	Root, Dir string
	// Platforms are those of kubectl-carve.
	Platforms []Platform
	// At is the time of every file in an archive.
	At time.Time
	// Signer signs the checksums; without one nothing is signed.
	Signer signature.Signer
}

// Architectures are those of the images.
var Architectures = []string{"amd64", "arm64"}

// Image is one of a release's images: Carve's own, or carve-scheduler's for one minor version of Kubernetes.
type Image struct {
	// suffix follows the name of Carve's own image, tag is the image's in a registry.
	suffix, tag string
}

// Images returns a release's images, Carve's own first.
func Images(root, v string) ([]Image, error) {
	minors, err := version.Minors(root)
	if err != nil {
		return nil, err
	}
	images := []Image{{tag: v}}
	for _, minor := range minors {
		images = append(images, Image{suffix: "-scheduler", tag: v + "-k8s" + minor})
	}
	return images, nil
}

// Reference returns the image's name and tag, where Carve's own image has the given name.
func (i Image) Reference(carve string) string { return carve + i.suffix + ":" + i.tag }

// name returns what the names of the image's files begin with.
func (i Image) name() string { return "carve" + i.suffix + "-image-" + i.tag }

// Archive is the name of the image's archive for one architecture.
func (i Image) Archive(architecture string) string {
	return i.name() + "-linux-" + architecture + ".tar"
}

// Index returns the index of the image in a release's folder, and its archives by architecture. It is nil where
// there are none.
func (i Image) Index(dir string) (v1.ImageIndex, map[string]string, error) {
	archives := map[string]string{}
	var paths []string
	for _, architecture := range Architectures {
		path := filepath.Join(dir, i.Archive(architecture))
		if _, err := os.Stat(path); err == nil {
			archives[architecture], paths = path, append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil, nil, nil
	}
	index, err := oci.Index(paths...)
	return index, archives, err
}

// ChartArchive is the path of the chart's package in a release's folder.
func ChartArchive(dir, v string) string {
	return filepath.Join(dir, "carve-"+strings.TrimPrefix(v, "v")+".tgz")
}

// imageName is what Carve's own image of a release is called before it is pushed.
const imageName = "registry.example.com/carve"

// Make makes the release and returns its version.
func Make(ctx context.Context, o Options) (string, error) {
	v, err := version.Read(o.Root)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the release: %w", err)
	}
	c, err := chart.Load(filepath.Join(o.Root, chart.Dir))
	if err != nil {
		return "", err
	}
	if _, err := chart.Package(c, o.Dir, o.At); err != nil {
		return "", err
	}
	if err := plain(o); err != nil {
		return "", err
	}
	for _, platform := range o.Platforms {
		if err := plugin(ctx, o, platform, v); err != nil {
			return "", err
		}
	}
	if err := images(o, v); err != nil {
		return "", err
	}
	sums, err := checksums(o.Dir)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, Checksums), sums, 0o644); err != nil {
		return "", fmt.Errorf("write the checksums: %w", err)
	}
	if o.Signer == nil {
		return v, nil
	}
	signed, err := o.Signer.SignMessage(bytes.NewReader(sums))
	if err != nil {
		return "", fmt.Errorf("sign the checksums: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, Signature), []byte(base64.StdEncoding.EncodeToString(signed)), 0o644); err != nil {
		return "", fmt.Errorf("write the signature: %w", err)
	}
	return v, nil
}

// images writes the index of each image, and the lists of what it is made of.
func images(o Options, v string) error {
	all, err := Images(o.Root, v)
	if err != nil {
		return err
	}
	for _, image := range all {
		if err := image.write(o, v); err != nil {
			return err
		}
	}
	return nil
}

func (i Image) write(o Options, v string) error {
	index, archives, err := i.Index(o.Dir)
	if err != nil || index == nil {
		return err
	}
	if err := oci.Archive(index, i.Reference(imageName), filepath.Join(o.Dir, i.name()+"-oci.tar"), o.At); err != nil {
		return err
	}
	for _, archive := range archives {
		image, err := oci.Image(archive)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(archive), ".tar")
		var list bytes.Buffer
		if err := (sbom.Document{Name: name, Version: v, At: o.At}).Write(image, &list); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.Dir, name+".spdx.json"), list.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write the list of what the image is made of: %w", err)
		}
	}
	return nil
}

// plain writes the objects of the base and of each overlay, for users without kustomize.
func plain(o Options) error {
	overlays, err := os.ReadDir(filepath.Join(o.Root, "deploy", "overlays"))
	if err != nil {
		return fmt.Errorf("list the overlays: %w", err)
	}
	sources := map[string]string{"carve.yaml": "deploy/base"}
	for _, overlay := range overlays {
		sources["carve-"+overlay.Name()+".yaml"] = filepath.Join("deploy/overlays", overlay.Name())
	}
	for name, source := range sources {
		text, err := manifests.Build(filepath.Join(o.Root, source))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.Dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
	}
	return nil
}

// plugin builds kubectl-carve and packs it with what completes it and the licences.
func plugin(ctx context.Context, o Options, platform Platform, v string) error {
	dir, err := os.MkdirTemp("", "carve-release-")
	if err != nil {
		return fmt.Errorf("build kubectl-carve: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "kubectl-carve")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version="+v, "-o", program, "./cmd/kubectl-carve")
	command.Dir = o.Root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+platform.OS, "GOARCH="+platform.Arch)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build kubectl-carve for %s: %w\n%s", platform, err, bytes.TrimSpace(output))
	}
	members := []member{{"kubectl-carve", program, 0o755}, {completer, filepath.Join(o.Root, "deploy/kubectl", completer), 0o755}}
	licences, err := findLicences(ctx, o.Root, platform, filepath.Join(dir, "licenses"))
	if err != nil {
		return err
	}
	archive, err := pack(o.At, append(members, licences...)...)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("kubectl-carve-%s-%s-%s.tar.gz", v, platform.OS, platform.Arch)
	if err := os.WriteFile(filepath.Join(o.Dir, name), archive, 0o644); err != nil {
		return fmt.Errorf("write kubectl-carve: %w", err)
	}
	return nil
}

// findLicences returns those of kubectl-carve and of what it is linked of, by way of the folder dir.
// Carve's own lies beside the program.
func findLicences(ctx context.Context, root string, platform Platform, dir string) (found []member, _ error) {
	command := exec.CommandContext(ctx, "go", "run", "./deploy/image/licenses", "-os="+platform.OS, "-arch="+platform.Arch, dir, "./cmd/kubectl-carve")
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the licences of kubectl-carve: %w\n%s", err, bytes.TrimSpace(output))
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := "licenses" + strings.TrimPrefix(path, dir)
		if name == "licenses/LICENSE" {
			name = "LICENSE"
		}
		found = append(found, member{name, path, 0o644})
		return nil
	})
	return found, err
}

// completer is the program that kubectl runs to complete `kubectl carve`.
const completer = "kubectl_complete-carve"

// String returns the platform as OS/ARCH.
func (p Platform) String() string { return p.OS + "/" + p.Arch }

// member is a file of an archive.
type member struct {
	name, path string
	mode       int64
}

// pack returns an archive that depends on nothing but the files and the time.
func pack(at time.Time, members ...member) ([]byte, error) {
	var buffer bytes.Buffer
	zipped := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(zipped)
	for _, m := range members {
		content, err := os.ReadFile(m.path)
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", m.name, err)
		}
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(content)), ModTime: at, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", m.name, err)
		}
		if _, err := archive.Write(content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", m.name, err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return buffer.Bytes(), nil
}

// ErrNotWhole is the error of a folder that does not hold a release as Make left it.
var ErrNotWhole = errors.New("it is not a whole release; run make release")

// Check checks that a folder holds the release of a version as Make left it: the checksums, which are
// written last, are those of its files, and the images and the chart are among them.
func Check(dir, v string, images []Image) error {
	want, err := os.ReadFile(filepath.Join(dir, Checksums))
	if err != nil {
		return fmt.Errorf("%s: %w: %w", dir, ErrNotWhole, err)
	}
	got, err := checksums(dir)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(want)) {
		if !bytes.Contains(got, []byte(line)) {
			return fmt.Errorf("%s: %w: no file has this checksum: %s", dir, ErrNotWhole, strings.TrimSpace(line))
		}
	}
	parts := []string{filepath.Base(ChartArchive(dir, v))}
	for _, image := range images {
		for _, architecture := range Architectures {
			parts = append(parts, image.Archive(architecture))
		}
	}
	for _, part := range parts {
		if !bytes.Contains(want, []byte("  "+part+"\n")) {
			return fmt.Errorf("%s: %w: %s is not in %s", dir, ErrNotWhole, part, Checksums)
		}
	}
	return nil
}

// checksums returns those of all files of the release, as sha256sum prints and checks them.
func checksums(dir string) ([]byte, error) {
	var sums bytes.Buffer
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path == Checksums || path == Signature {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sum up the release: %w", err)
	}
	return sums.Bytes(), nil
}
