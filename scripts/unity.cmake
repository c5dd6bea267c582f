# Included by CMake after every project() call (-DCMAKE_PROJECT_INCLUDE): compiles the sources of some of
# llama.cpp's targets in batches, so that the large headers they share are parsed once a batch, without a patch.
# ggml-cpu and mtmd are left alone: their sources define the same names.
if(NOT CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR OR OPENJEV_UNITY_INCLUDED)
    return()
endif()
set(OPENJEV_UNITY_INCLUDED TRUE)

function(openjev_unity target batch)
    if(TARGET ${target})
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
        # Sources named after the batch size are compiled on their own.
        foreach(source IN LISTS ARGN)
            get_target_property(folder ${target} SOURCE_DIR)
            set_source_files_properties(${folder}/${source} TARGET_DIRECTORY ${target}
                PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
        endforeach()
    endif()
endfunction()

function(openjev_unity_all)
    openjev_unity(llama-common 16)
    # The largest source and the one patches change most: alone, it is compiled beside the others.
    openjev_unity(server-context 16 server-context.cpp)
    openjev_unity(llama-server-impl 16)
endfunction()

# Targets do not exist yet when project() returns: run when the top directory has been read.
cmake_language(DEFER CALL openjev_unity_all)
