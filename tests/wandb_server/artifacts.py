"""Artifacts, as far as logging a table or a file and listing it again needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphql import GraphQLError

from wandb_server.store import Store, StoredArtifact, opaque_id

Node = dict[str, Any]


def artifact_node(artifact: StoredArtifact, base_url: str) -> Node:
    run = artifact.run
    project = {
        "id": opaque_id("Project", "v1", run.project, run.entity),
        "internalId": opaque_id("ProjectInternalId", "7"),
        "name": run.project,
        "entity": {"id": opaque_id("Entity", run.entity), "name": run.entity},
    }
    sequence = {"__typename": "ArtifactSequence", "name": artifact.name, "project": project, "latestArtifact": None}
    return {
        "id": artifact.id,
        "state": artifact.state,
        "digest": artifact.digest,
        "digestAlgorithm": "MANIFEST_MD5",
        "description": artifact.description,
        "metadata": artifact.metadata or "{}",
        "ttlDurationSeconds": -2,
        "ttlIsInherited": True,
        "tags": [],
        "historyStep": None,
        "size": sum(len(content) for content in artifact.files.values()),
        "commitHash": artifact.digest[:20],
        "fileCount": len(artifact.files),
        "createdAt": run.created.isoformat(),
        "updatedAt": run.created.isoformat(),
        "versionIndex": artifact.version,
        "artifactType": {"name": artifact.kind},
        "artifactSequence": sequence,
        "aliases": [
            {"id": opaque_id("Alias", artifact.id, alias), "alias": alias, "artifactCollection": sequence}
            for alias in artifact.aliases
        ],
        "currentManifest": {
            "id": opaque_id("Manifest", artifact.id),
            "file": {
                "id": opaque_id("ManifestFile", artifact.id),
                "directUrl": f"{base_url}/artifact-manifest/{artifact.id}",
                "uploadUrl": f"{base_url}/artifact-manifest/{artifact.id}",
                "uploadHeaders": [],
            },
        },
        "files": lambda info, after=None, first=50: {
            "edges": [
                {
                    "node": {"name": name, "directUrl": f"{base_url}/artifact-file/{artifact.id}/{name}"},
                    "cursor": name,
                }
                for name in artifact.files
            ],
            "pageInfo": {"endCursor": None, "hasNextPage": False},
        },
    }


class ArtifactMutations:
    """The mutations by which wandb-core uploads an artifact: create, manifest, files, commit."""

    def __init__(self, store: Store, base_url: Callable[[], str]) -> None:
        self.store = store
        self.base_url = base_url

    def mutations(self) -> Node:
        return {
            "createArtifact": self.create,
            "createArtifactManifest": self.manifest,
            "updateArtifactManifest": self.update_manifest,
            "createArtifactFiles": self.files,
            "commitArtifact": self.commit,
        }

    def client_id_mapping(self, info: Any, clientID: str) -> Node | None:  # noqa: N803
        found = next((item for item in self.store.artifacts if item.client_id == clientID), None)
        return {"serverID": found.id} if found else None

    def collection(self, project: str, name: str) -> Node | None:
        """All versions of one artifact, of which the SDK asks for one by its alias or version."""
        versions = [item for item in self.store.artifacts if item.name == name and item.run.project == project]

        def membership(info: Any, aliasName: str) -> Node | None:  # noqa: N803
            named = (item for item in versions if aliasName in (*item.aliases, f"v{item.version}"))
            found = next(named, None)
            return artifact_node(found, self.base_url()) if found else None

        return {"__typename": "ArtifactSequence", "name": name, "artifactMembership": membership} if versions else None

    def _find(self, artifact_id: str) -> StoredArtifact:
        found = self.store.artifact(artifact_id)
        if found is None:
            raise GraphQLError(f"no artifact {artifact_id}")
        return found

    def create(self, info: Any, input: Mapping[str, Any]) -> Node:
        run = self.store.find(input["entityName"], input["projectName"], input["runName"])
        if run is None:
            raise GraphQLError("run not found")
        name = input.get("artifactCollectionName") or input["artifactCollectionNames"][0]
        earlier = [item for item in self.store.artifacts if item.name == name and item.run.project == run.project]
        same = next((item for item in earlier if item.digest == input["digest"] and item.state == "COMMITTED"), None)
        if same is not None:
            return {"artifact": artifact_node(same, self.base_url())}
        artifact = StoredArtifact(
            run,
            name,
            input["artifactTypeName"],
            len(earlier),
            input["digest"],
            input.get("metadata"),
            input.get("description"),
            [alias["alias"] for alias in input.get("aliases") or []],
            input.get("clientID") or "",
        )
        self.store.artifacts.append(artifact)
        return {"artifact": artifact_node(artifact, self.base_url())}

    def manifest(self, info: Any, input: Mapping[str, Any]) -> Node:
        return {"artifactManifest": artifact_node(self._find(input["artifactID"]), self.base_url())["currentManifest"]}

    def update_manifest(self, info: Any, input: Mapping[str, Any]) -> Node:
        wanted = input["artifactManifestID"]
        found = next(item for item in self.store.artifacts if opaque_id("Manifest", item.id) == wanted)
        return {"artifactManifest": artifact_node(found, self.base_url())["currentManifest"]}

    def files(self, info: Any, input: Mapping[str, Any]) -> Node:
        nodes = []
        for spec in input["artifactFiles"]:
            artifact = self._find(spec["artifactID"])
            url = f"{self.base_url()}/artifact-file/{artifact.id}/{spec['name']}"
            nodes.append(
                {
                    "id": opaque_id("File", artifact.id, spec["name"]),
                    "name": spec["name"],
                    "storagePath": f"wandb_artifacts/{artifact.id}/{spec['name']}",
                    "uploadUrl": url,
                    "uploadHeaders": [],
                    "uploadMultipartUrls": None,
                    "artifact": {"id": artifact.id},
                }
            )
        edges = [{"node": node, "cursor": str(index)} for index, node in enumerate(nodes)]
        return {"files": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}}

    def commit(self, info: Any, input: Mapping[str, Any]) -> Node:
        artifact = self._find(input["artifactID"])
        artifact.state = "COMMITTED"
        return {"artifact": artifact_node(artifact, self.base_url())}
