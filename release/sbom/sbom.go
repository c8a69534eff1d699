// Package sbom writes what an image is made of, Debian's packages and Go's modules with their licences,
// as an SPDX document. It reads the image and nothing else.
package sbom

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	// packages is where the image has a file for each Debian package.
	packages = "var/lib/dpkg/status.d/"
	// programs is where the image has Carve's programs.
	programs = "usr/local/bin/"
	// unknown is what SPDX has where a document says nothing.
	unknown = "NOASSERTION"
	// carve is Carve's own module.
	carve = "github.com/carve-csi/carve"
)

// Component is what the image has a part of.
type Component struct {
	Name, Version string
	// PURL is its package URL, which those who look for known weaknesses go by.
	PURL string
	// Licence is what its licence is by SPDX's names.
	Licence string
	// folder is where the image has its licence.
	folder string
}

// components lists what an image is made of, sorted, each once. The image must have the licence of each.
func (d Document) components(image v1.Image) ([]Component, error) {
	texts, err := newLicences()
	if err != nil {
		return nil, err
	}
	contents := mutate.Extract(image)
	defer contents.Close()
	found := []Component{{Name: carve, Version: d.Version, PURL: "pkg:golang/" + carve + "@" + d.Version, folder: licenceFolder}}
	for reader := tar.NewReader(contents); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the image: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		if err := texts.read(name, header, reader); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		var some []Component
		switch {
		case strings.HasPrefix(name, packages):
			some, err = debian(reader)
		case strings.HasPrefix(name, programs+"carve-"):
			some, err = modules(reader)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b Component) int { return cmp.Compare(a.PURL, b.PURL) })
	found = slices.Compact(found)
	for i, c := range found {
		if found[i].Licence, err = texts.declared(c); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// debian reads a Debian package's status.
func debian(source io.Reader) ([]Component, error) {
	fields, err := textproto.NewReader(bufio.NewReader(source)).ReadMIMEHeader()
	if err != nil && !errors.Is(err, io.EOF) { // The last line needs no empty one after it.
		return nil, err
	}
	name, version := fields.Get("Package"), fields.Get("Version")
	if name == "" || version == "" {
		return nil, errors.New("it names no package, or no version")
	}
	return []Component{{
		Name: name, Version: version,
		PURL:   fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", url.PathEscape(name), url.QueryEscape(version), fields.Get("Architecture")),
		folder: copyrights + name,
	}}, nil
}

// modules reads what a program was built of.
func modules(source io.Reader) ([]Component, error) {
	content, err := io.ReadAll(source)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	found := []Component{{Name: "go", Version: info.GoVersion, PURL: "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"), folder: licenceFolder + "/go"}}
	for _, module := range info.Deps {
		if module.Path == carve { // The module of carve-scheduler is not Carve's own.
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		found = append(found, Component{
			Name: module.Path, Version: module.Version, PURL: "pkg:golang/" + module.Path + "@" + url.QueryEscape(module.Version),
			folder: licenceFolder + "/" + module.Path + "@" + module.Version,
		})
	}
	return found, nil
}

// Document is what to write.
type Document struct {
	// Name is the image's, without the suffix of its archive; Version is the release's.
	Name, Version string
	// At is when the document was made.
	At time.Time
}

// Write writes the SPDX document of an image, as JSON. The same image and time give the same
// bytes.
func (d Document) Write(image v1.Image, output io.Writer) error {
	components, err := d.components(image)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return fmt.Errorf("sum up the image: %w", err)
	}
	whole := &v2_3.Package{
		PackageName: d.Name, PackageSPDXIdentifier: "Package-image", PackageVersion: d.Version, PackageDownloadLocation: unknown,
		PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: digest.Hex}},
	}
	document := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: d.Name,
		DocumentNamespace: fmt.Sprintf("https://github.com/carve-csi/carve/spdx/%s-%s", d.Name, digest.Hex),
		CreationInfo: &v2_3.CreationInfo{
			Created: d.At.UTC().Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "carve-release-" + d.Version}},
		},
		Packages:      []*v2_3.Package{whole},
		Relationships: []*v2_3.Relationship{relation("DOCUMENT", "DESCRIBES", whole.PackageSPDXIdentifier)},
	}
	for i, c := range components {
		one := &v2_3.Package{
			PackageName: c.Name, PackageVersion: c.Version, PackageSPDXIdentifier: common.ElementID(fmt.Sprintf("Package-%d", i+1)),
			PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: c.Licence, PackageCopyrightText: unknown,
			PackageExternalReferences: []*v2_3.PackageExternalReference{{
				Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: c.PURL}},
		}
		document.Packages = append(document.Packages, one)
		document.Relationships = append(document.Relationships, relation(whole.PackageSPDXIdentifier, "CONTAINS", one.PackageSPDXIdentifier))
	}
	if err := spdxjson.Write(document, output, spdxjson.Indent("  ")); err != nil {
		return fmt.Errorf("write the SPDX document: %w", err)
	}
	return nil
}

func relation(from common.ElementID, kind string, to common.ElementID) *v2_3.Relationship {
	return &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to)), Relationship: kind,
	}
}
