package sbom

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

const (
	// copyrights is where the image has a folder, or a link to one, with the licences of each Debian
	// package.
	copyrights = "usr/share/doc/"
	// licenceFolder is where the image has Carve's licence, and those of Go and of each module.
	licenceFolder = "licenses"
)

// ErrNoLicence is the error of an image that does not have the licence of a part.
var ErrNoLicence = errors.New("the image does not have its licence")

// licences are those that an image has.
type licences struct {
	classifier *classifier.Classifier
	// of has SPDX's names of the licences in a folder, if they are known, and links the folders
	// that links lead to.
	of    map[string][]string
	links map[string]string
}

func newLicences() (licences, error) {
	known, err := assets.DefaultClassifier()
	if err != nil {
		return licences{}, fmt.Errorf("load the known licences: %w", err)
	}
	return licences{classifier: known, of: map[string][]string{}, links: map[string]string{}}, nil
}

// read notes a file of the image if it is a licence.
func (l licences) read(name string, header *tar.Header, content io.Reader) error {
	switch {
	case strings.HasPrefix(name, copyrights) && header.Typeflag == tar.TypeSymlink:
		l.links[name] = path.Join(path.Dir(name), header.Linkname)
	case strings.HasPrefix(name, copyrights) && header.Typeflag == tar.TypeReg:
		l.of[path.Dir(name)] = nil // Whatever form it has.
	case strings.HasPrefix(name, licenceFolder+"/") && header.Typeflag == tar.TypeReg:
		folder := path.Dir(name)
		if module, below, ok := strings.Cut(name, "@"); ok {
			version, _, _ := strings.Cut(below, "/")
			folder = module + "@" + version
		}
		found, err := l.classifier.MatchFrom(content)
		if err != nil {
			return err
		}
		names := l.of[folder]
		for _, match := range found.Matches {
			if match.MatchType == "License" || match.MatchType == "Header" {
				names = append(names, match.Name)
			}
		}
		slices.Sort(names)
		l.of[folder] = slices.Compact(names)
	}
	return nil
}

// declared returns the licence of a part as an expression of SPDX, or NOASSERTION if the image has it in a
// form that is not known.
func (l licences) declared(c Component) (string, error) {
	folder := c.folder
	if other, ok := l.links[folder]; ok {
		folder = other
	}
	names, ok := l.of[folder]
	if !ok {
		return "", fmt.Errorf("%s: %w", c.Name, ErrNoLicence)
	}
	if len(names) == 0 {
		return unknown, nil
	}
	return strings.Join(names, " AND "), nil
}
