# Included by CMake after every project() call (-DCMAKE_PROJECT_INCLUDE): compiles the sources of some of
# llama.cpp's targets in batches, so that the large headers they share are parsed once a batch, without a patch.
# (llama.cpp does so itself for its 130 model files. The sources of ggml-cpu define the same names.)
if(NOT CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR OR OPENJEV_UNITY_INCLUDED)
    return()
endif()
set(OPENJEV_UNITY_INCLUDED TRUE)

# Compile the target's sources in batches of 16, except those that match the expression.
function(openjev_unity target alone)
    if(NOT TARGET ${target})
        return()
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "${alone}")
    foreach(source IN LISTS sources)
        set_source_files_properties(${folder}/${source} TARGET_DIRECTORY ${target}
            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
endfunction()

function(openjev_unity_all)
    openjev_unity(llama-common "^$")
    openjev_unity(llama-server-impl "^$")
    # The largest source and the one patches change most: alone, it is compiled beside the others.
    openjev_unity(server-context "^server-context\\.cpp$")
    # Outside models/ the same names are defined twice.
    openjev_unity(mtmd "^[^/]+$")
endfunction()

# Targets do not exist yet when project() returns: run when the top directory has been read.
cmake_language(DEFER CALL openjev_unity_all)
