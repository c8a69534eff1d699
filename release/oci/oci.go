// Package oci makes one image index of the images of several architectures, puts it into a
// registry, and signs it there as cosign does.
package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// Image returns the image in an archive as `docker save` writes it, with OCI's media types and
// compressed layers.
func Image(archive string) (v1.Image, error) {
	docker, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return nil, fmt.Errorf("read the image %s: %w", archive, err)
	}
	config, err := docker.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image %s: %w", archive, err)
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs, config.History = nil, nil
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), config)
	if err != nil {
		return nil, fmt.Errorf("convert the image %s: %w", archive, err)
	}
	layers, err := docker.Layers()
	if err != nil {
		return nil, fmt.Errorf("read the layers of %s: %w", archive, err)
	}
	for _, l := range layers {
		converted, err := tarball.LayerFromOpener(l.Uncompressed, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, fmt.Errorf("convert a layer of %s: %w", archive, err)
		}
		if image, err = mutate.AppendLayers(image, converted); err != nil {
			return nil, fmt.Errorf("convert the image %s: %w", archive, err)
		}
	}
	return image, nil
}

// Index returns the index of the images in archives, of one architecture each.
func Index(archives ...string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, archive := range archives {
		image, err := Image(archive)
		if err != nil {
			return nil, err
		}
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read the image %s: %w", archive, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: untyped{image}, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}},
		})
	}
	return index, nil
}

// untyped is an image without a type of artifact in its index, which is optional. Tools that do not know
// that field copy an index without it, and the digest of the copy would not be the one that is signed.
type untyped struct{ v1.Image }

// ArtifactType is empty.
func (untyped) ArtifactType() (string, error) { return "", nil }

// Archive writes an index as an archive in OCI's layout, under a name and tag. It depends on
// nothing but the index, the name and the time.
func Archive(index v1.ImageIndex, reference, output string, at time.Time) (err error) {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("name of an image: got %q, want REGISTRY/NAME:TAG: %w", reference, err)
	}
	dir, err := os.MkdirTemp("", "carve-oci-")
	if err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		// The first is what OCI's tools look for, the second what containerd does.
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": tag.TagStr(), "io.containerd.image.name": tag.String(),
		}))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	file, err := os.Create(output)
	if err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	if err := errors.Join(pack(file, dir, at), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return nil
}

// pack writes the files of a folder, in order, as a tar.
func pack(output io.Writer, dir string, at time.Time) error {
	archive := tar.NewWriter(output)
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := os.Open(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: info.Size(), ModTime: at, Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = io.Copy(archive, file)
		return err
	})
	return errors.Join(err, archive.Close())
}

// Push puts an index into a registry under REGISTRY/NAME:TAG and returns its reference by
// digest. The credentials are those of Docker's configuration.
func Push(ctx context.Context, index v1.ImageIndex, reference string) (name.Digest, error) {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return name.Digest{}, fmt.Errorf("name of an image: got %q, want REGISTRY/NAME:TAG: %w", reference, err)
	}
	if err := remote.WriteIndex(tag, index, options(ctx)...); err != nil {
		return name.Digest{}, fmt.Errorf("push %s: %w", reference, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return name.Digest{}, fmt.Errorf("push %s: %w", reference, err)
	}
	return tag.Digest(digest.String()), nil
}

func options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// Media type and annotation of a signature, as cosign's specification has them.
const (
	signatureType       = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

// ErrKey is the error of a key that cannot sign.
var ErrKey = errors.New("the key must be a private key in PEM: an ECDSA key on P-256 in PKCS 8, or one that cosign made")

// Signer loads the key to sign with. password is that of an encrypted key.
func Signer(key, password []byte) (signature.SignerVerifier, error) {
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(key, cryptoutils.StaticPasswordFunc(password))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	elliptic, ok := private.(*ecdsa.PrivateKey)
	if !ok {
		return nil, ErrKey
	}
	signer, err := signature.LoadECDSASignerVerifier(elliptic, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return signer, nil
}

// Sign puts the signature of an image into its registry, where cosign looks for it.
func Sign(ctx context.Context, image name.Digest, signer signature.Signer) error {
	text, err := payload.Cosign{Image: image}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("sign %s: %w", image, err)
	}
	signed, err := signer.SignMessage(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("sign %s: %w", image, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	signatures, err := mutate.Append(base, mutate.Addendum{
		Layer:       static.NewLayer(text, signatureType),
		Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(signed)},
	})
	if err != nil {
		return fmt.Errorf("sign %s: %w", image, err)
	}
	if err := remote.Write(signatureTag(image), signatures, options(ctx)...); err != nil {
		return fmt.Errorf("push the signature of %s: %w", image, err)
	}
	return nil
}

// signatureTag is where cosign looks for the signature of an image.
func signatureTag(image name.Digest) name.Tag {
	return image.Tag(strings.ReplaceAll(image.DigestStr(), ":", "-") + ".sig")
}

// ErrNotSigned is the error of an image without a signature by a key.
var ErrNotSigned = errors.New("it has no signature by this key")

// Verify checks the signature of an image in its registry as `cosign verify --key` does,
// without a transparency log.
func Verify(ctx context.Context, image name.Digest, verifier signature.Verifier) error {
	signatures, err := remote.Image(signatureTag(image), options(ctx)...)
	if err != nil {
		return fmt.Errorf("read the signature of %s: %w", image, err)
	}
	manifest, err := signatures.Manifest()
	if err != nil {
		return fmt.Errorf("read the signature of %s: %w", image, err)
	}
	for _, descriptor := range manifest.Layers {
		if err := verifyOne(signatures, descriptor, image, verifier); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %w", image, ErrNotSigned)
}

func verifyOne(signatures v1.Image, descriptor v1.Descriptor, image name.Digest, verifier signature.Verifier) error {
	layer, err := signatures.LayerByDigest(descriptor.Digest)
	if err != nil {
		return fmt.Errorf("read a signature: %w", err)
	}
	reader, err := layer.Compressed() // It is JSON as it is.
	if err != nil {
		return fmt.Errorf("read a signature: %w", err)
	}
	text, err := io.ReadAll(reader)
	if err := errors.Join(err, reader.Close()); err != nil {
		return fmt.Errorf("read a signature: %w", err)
	}
	signed, err := base64.StdEncoding.DecodeString(descriptor.Annotations[signatureAnnotation])
	if err != nil {
		return fmt.Errorf("read a signature: %w", err)
	}
	if err := verifier.VerifySignature(bytes.NewReader(signed), bytes.NewReader(text)); err != nil {
		return fmt.Errorf("verify a signature: %w", err)
	}
	var claim payload.Cosign
	if err := claim.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("read a signature: %w", err)
	}
	if claim.Image.DigestStr() != image.DigestStr() {
		return ErrNotSigned
	}
	return nil
}
